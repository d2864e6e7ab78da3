/* Convolutions with few filters, W E, and their gradients, in float32: channels last, any stride, padding and dilation.

Libraries are made for many channels. With 8 or 16 filters, a loop over patches that keeps its sums in registers is two to eight
times faster. Sums over images are made in parts whose number does not depend on the number of threads. */

#include "common.h"

#define POSITIONS 12 /* sums that are kept in registers: of neighbouring positions, at most, */
#define TAPS 9       /* or of numbers of a patch */
#define SUMS 16      /* parts of the images, each with a sum for the gradient of the filters */

/* Images with zeros around them, and between their pixels if they are spread out by a stride. */
struct Frame {
  long h, w, channels;
  long top, left, step_h, step_w; /* where the first pixel goes, and how far the next ones are */
  long full_h, full_w;

  bool same() const { return h == full_h && w == full_w; }
  long size() const { return full_h * full_w * channels; }
  /* `image`, or a copy in the buffer, whose zeros are there already */
  const float *of(const float *image, float *buffer) const {
    if (same()) return image;
    for (long y = 0; y < h; y++) {
      float *to = buffer + ((top + y * step_h) * full_w + left) * channels;
      const float *from = image + y * w * channels;
      if (step_w == 1) memcpy(to, from, w * channels * sizeof(float));
      else
        for (long x = 0; x < w; x++) memcpy(to + x * step_w * channels, from + x * channels, channels * sizeof(float));
    }
    return buffer;
  }
};

/* Where the numbers of a patch are, from its first one: (kernel_h, kernel_w, channels). Filled up to a multiple of TAPS. */
static long *offsets_of(const Patches &p, const Frame &frame, long &taps) {
  taps = p.kernel_h * p.kernel_w * p.channels;
  long *offsets = (long *)calloc(taps + TAPS, sizeof(long)), t = 0;
  for (long a = 0; offsets && a < p.kernel_h; a++)
    for (long b = 0; b < p.kernel_w; b++)
      for (long c = 0; c < p.channels; c++)
        offsets[t++] = (a * p.dilation_h * frame.full_w + b * p.dilation_w) * p.channels + c;
  return offsets;
}

/* A row of positions that are `step` apart, and LANES filters, of which `width` are wanted; their weights are (taps, padded). */
struct Row {
  const float *x;
  long step, taps;
  const long *offsets;
  const float *weights;
  long padded;
  float *out;
  long filters, width;

  template <int count> void respond(long first) const {
    Vec sums[count];
    UNROLL for (int i = 0; i < count; i++) sums[i] = spread(0);
    const float *from = x + first * step;
    for (long t = 0; t < taps; t++) {
      const Vec weight = load(weights + t * padded);
      const float *at = from + offsets[t];
      UNROLL for (int i = 0; i < count; i++) sums[i] = sums[i] + spread(at[i * step]) * weight;
    }
    float *to = out + first * filters;
    UNROLL for (int i = 0; i < count; i++) {
      if (width == LANES) store(to + i * filters, sums[i]);
      else memcpy(to + i * filters, &sums[i], width * sizeof(float));
    }
  }

  void respond(long first, long count) const {
    switch (count) {
      case 12: return respond<12>(first);
      case 11: return respond<11>(first);
      case 10: return respond<10>(first);
      case 9: return respond<9>(first);
      case 8: return respond<8>(first);
      case 7: return respond<7>(first);
      case 6: return respond<6>(first);
      case 5: return respond<5>(first);
      case 4: return respond<4>(first);
      case 3: return respond<3>(first);
      case 2: return respond<2>(first);
      default: return respond<1>(first);
    }
  }
};

static void respond_row(Row row, long columns) {
  const long pieces = (columns + POSITIONS - 1) / POSITIONS;
  const float *weights = row.weights;
  float *out = row.out;
  for (long f = 0; f < row.filters; f += LANES) {
    row.weights = weights + f, row.out = out + f, row.width = least(LANES, row.filters - f);
    for (long piece = 0, first = 0, end; piece < pieces; piece++, first = end) {
      end = columns * (piece + 1) / pieces;
      row.respond(first, end - first);
    }
  }
}

/* The numbers that Python passes; an image whose pixels are the patches is one row of them. */
static Patches patches_of(const long *shape) {
  Patches p = *(const Patches *)shape;
  if (p.single()) p.w = p.columns = p.h * p.w, p.h = p.rows = 1;
  return p;
}

static Frame frame_of(const Patches &p) {
  return {p.h, p.w, p.channels, p.padding_h, p.padding_w, 1, 1, p.h + 2 * p.padding_h, p.w + 2 * p.padding_w};
}

static Status convolve(const Patches &p, const Frame &frame, const float *x, const float *weights, float *out, long filters,
                       int threads) {
  const long padded = (filters + LANES - 1) / LANES * LANES, length = p.rows * p.columns * filters;
  long taps, *offsets = offsets_of(p, frame, taps);
  bool failed = !offsets;
  PARALLEL for (long part = 0; part < PARTS; part++) {
    float *buffer = frame.same() || failed ? nullptr : (float *)calloc(frame.size(), sizeof(float));
    if (failed || !(frame.same() || buffer)) {
      failed = true;
      continue;
    }
    for (long i = p.n * part / PARTS; i < p.n * (part + 1) / PARTS; i++) {
      const float *image = frame.of(x + i * p.h * p.w * p.channels, buffer);
      for (long y = 0; y < p.rows; y++)
        respond_row({image + y * p.stride_h * frame.full_w * p.channels, p.stride_w * p.channels, taps, offsets, weights, padded,
                     out + i * length + y * p.columns * filters, filters, LANES},
                    p.columns);
    }
    free(buffer);
  }
  free(offsets);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* Responses (n, rows, columns, filters) of x (n, h, w, channels) to filters (filters, channels, kernel_h, kernel_w). */
extern "C" int convolution(const long *shape, const float *x, const float *filter, float *out, long filters, int threads) {
  const Patches p = patches_of(shape);
  const long padded = (filters + LANES - 1) / LANES * LANES, size = p.kernel_h * p.kernel_w;
  float *weights = (float *)calloc(size * p.channels * padded, sizeof(float)); /* (kernel_h, kernel_w, channels, padded) */
  if (!weights) return OUT_OF_MEMORY;
  for (long f = 0; f < filters; f++)
    for (long c = 0; c < p.channels; c++)
      for (long k = 0; k < size; k++) weights[(k * p.channels + c) * padded + f] = filter[(f * p.channels + c) * size + k];
  const Status status = convolve(p, frame_of(p), x, weights, out, filters, threads);
  free(weights);
  return status;
}

/* The gradient of x from that of the responses: a convolution of the latter, spread out by the stride, with the patches reversed.
The padding is smaller than a patch. */
extern "C" int convolution_of_x(const long *shape, const float *of_responses, const float *filter, float *of_x, long filters,
                                int threads) {
  const Patches p = patches_of(shape);
  const long padded = (p.channels + LANES - 1) / LANES * LANES, size = p.kernel_h * p.kernel_w;
  const long span_h = p.dilation_h * (p.kernel_h - 1), span_w = p.dilation_w * (p.kernel_w - 1);
  float *weights = (float *)calloc(size * filters * padded, sizeof(float)); /* (kernel_h, kernel_w, filters, padded) */
  if (!weights) return OUT_OF_MEMORY;
  for (long f = 0; f < filters; f++)
    for (long c = 0; c < p.channels; c++)
      for (long k = 0; k < size; k++)
        weights[((size - 1 - k) * filters + f) * padded + c] = filter[(f * p.channels + c) * size + k];
  const Frame frame = {p.rows, p.columns, filters, span_h - p.padding_h, span_w - p.padding_w, p.stride_h, p.stride_w,
                       p.h + span_h, p.w + span_w};
  Patches reversed = p;
  reversed.h = p.rows, reversed.w = p.columns, reversed.rows = p.h, reversed.columns = p.w;
  reversed.channels = filters, reversed.stride_h = reversed.stride_w = 1;
  const Status status = convolve(reversed, frame, of_responses, weights, of_x, p.channels, threads);
  free(weights);
  return status;
}

/* sums (taps, padded) += x of each position times g, for TAPS taps and LANES filters. */
INLINE void correlate(const float *x, long row, long step, const long *offsets, const float *g, long filters, long rows,
                      long columns, float *to, long padded) {
  Vec sums[TAPS];
  UNROLL for (int t = 0; t < TAPS; t++) sums[t] = load(to + t * padded);
  for (long y = 0; y < rows; y++)
    for (long i = 0; i < columns; i++, g += filters) {
      const Vec factor = load(g);
      const float *at = x + y * row + i * step;
      UNROLL for (int t = 0; t < TAPS; t++) sums[t] = sums[t] + spread(at[offsets[t]]) * factor;
    }
  UNROLL for (int t = 0; t < TAPS; t++) store(to + t * padded, sums[t]);
}

/* The gradient of the filters (filters, channels, kernel_h, kernel_w); their number is a multiple of LANES. */
extern "C" int convolution_of_filters(const long *shape, const float *x, const float *of_responses, float *of_filter, long filters,
                                      int threads) {
  const Patches p = patches_of(shape);
  const Frame frame = frame_of(p);
  const long size = p.kernel_h * p.kernel_w;
  long taps, *offsets = offsets_of(p, frame, taps);
  const long blocks = (taps + TAPS - 1) / TAPS, length = blocks * TAPS * filters;
  float *sums = (float *)calloc(SUMS * length, sizeof(float));
  bool failed = !(offsets && sums);
  PARALLEL for (long part = 0; part < SUMS; part++) {
    float *buffer = frame.same() || failed ? nullptr : (float *)calloc(frame.size(), sizeof(float));
    if (failed || !(frame.same() || buffer)) {
      failed = true;
      continue;
    }
    for (long i = p.n * part / SUMS; i < p.n * (part + 1) / SUMS; i++) {
      const float *image = frame.of(x + i * p.h * p.w * p.channels, buffer), *g = of_responses + i * p.rows * p.columns * filters;
      for (long t = 0; t < blocks; t++)
        for (long f = 0; f < filters; f += LANES)
          correlate(image, p.stride_h * frame.full_w * p.channels, p.stride_w * p.channels, offsets + t * TAPS, g + f, filters,
                    p.rows, p.columns, sums + part * length + t * TAPS * filters + f, filters);
    }
    free(buffer);
  }
  if (!failed) {
    for (long part = 1; part < SUMS; part++) add(sums + part * length, sums, length);
    for (long f = 0; f < filters; f++)
      for (long c = 0; c < p.channels; c++)
        for (long k = 0; k < size; k++) of_filter[(f * p.channels + c) * size + k] = sums[(k * p.channels + c) * filters + f];
  }
  free(offsets);
  free(sums);
  return failed ? OUT_OF_MEMORY : DONE;
}
