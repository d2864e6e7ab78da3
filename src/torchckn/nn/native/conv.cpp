/* The gradients of a convolution: of images, with few filters; of filters, with many channels. */

#include "conv.h"

static Status convolve(const Patches &p, const Frame &frame, const float *x, const float *weights, float *out, long filters,
                       int threads) {
  const long parts = least(p.n, PARTS), row = p.stride_h * frame.full_w * p.channels;
  long taps, *offsets = offsets_of(p, frame, taps);
  std::atomic<bool> failed{!offsets};
  PARALLEL for (long part = 0; part < parts; part++) {
    float *buffer = frame.same() || failed ? nullptr : (float *)calloc(frame.size(), sizeof(float));
    if (failed || !(frame.same() || buffer)) {
      failed = true;
      continue;
    }
    for (long i = p.n * part / parts; i < p.n * (part + 1) / parts; i++) {
      const float *image = frame.of(x + i * p.h * p.w * p.channels, buffer);
      float *to = out + i * p.rows * p.columns * filters;
      Rows{image, row, p.stride_w * p.channels, taps, offsets, weights, to, filters, p.rows, p.columns}.respond();
    }
    free(buffer);
  }
  free(offsets);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradient of x from that of the responses: a convolution of the latter, spread out by the stride, with the patches reversed.
The padding is smaller than a patch. */
extern "C" int convolution_of_x(const long *shape, const float *of_responses, const float *filter, float *of_x, long filters,
                                int threads) {
  Patches p = *(const Patches *)shape;
  if (p.single()) p.w = p.columns = p.h * p.w, p.h = p.rows = 1; /* each image is one row of patches */
  const long size = p.kernel_h * p.kernel_w, taps = size * filters;
  const long span_h = p.dilation_h * (p.kernel_h - 1), span_w = p.dilation_w * (p.kernel_w - 1);
  float *weights = (float *)calloc(taps * padded_up(p.channels), sizeof(float)); /* its taps are (kernel_h, kernel_w, filters) */
  if (!weights) return OUT_OF_MEMORY;
  pack_all(weights, p.channels, size, filters,
           [&](long c, long k, long f) { return filter[(f * p.channels + c) * size + size - 1 - k]; });
  const Frame frame = {p.rows, p.columns, filters, span_h - p.padding_h, span_w - p.padding_w, p.stride_h, p.stride_w,
                       p.h + span_h, p.w + span_w};
  Patches reversed = p;
  reversed.h = p.rows, reversed.w = p.columns, reversed.rows = p.h, reversed.columns = p.w;
  reversed.channels = filters, reversed.stride_h = reversed.stride_w = 1;
  const Status status = convolve(reversed, frame, of_responses, weights, of_x, p.channels, threads);
  free(weights);
  return status;
}

/* The gradient of filters, (filters, kernel_h, kernel_w, channels). That of a few filters, one tap and TWO channels is kept in
registers while the positions of a unit of images are read. What these sums read lies in a row: images are in blocks of TWO channels,
(blocks, images, frame, TWO), and the gradients of responses in pieces of a few filters, (pieces, images, positions, filters of the
piece). */
struct FilterGradient {
  typedef std::conditional_t<HAS_WIDE, Wide, Vec> V;
  static constexpr int most_filters = MOST_OF_TWO;

  const Patches &p;
  const Frame frame;
  const long filters, room, area, positions, pieces; /* `room`: images that the buffers hold */
  float *images, *gradients;

  FilterGradient(const Patches &p, long filters)
      : p(p), frame(frame_of(p)), filters(filters), room(room_for(p)), area(frame.full_h * frame.full_w),
        positions(p.rows * p.columns), pieces((filters + most_filters - 1) / most_filters) {
    images = (float *)calloc(room * frame.size(), sizeof(float)); /* the frames stay zero */
    gradients = (float *)malloc(room * positions * filters * sizeof(float));
  }
  ~FilterGradient() {
    free(images);
    free(gradients);
  }
  bool failed() const { return !images || !gradients; }

  /* Whole units of images, with some hundred positions. */
  static long room_for(const Patches &p) { return least(parts_of(p.n), most(1, 128 / (p.rows * p.columns))) * UNIT; }
  long first_of(long piece) const { return filters * piece / pieces; }

  /* Put an image and the gradient of its responses into place i. */
  void pack(long i, const float *image, const float *of_responses) const {
    for (long c = 0; c < p.channels; c += TWO)
      for (long y = 0; y < p.h; y++) {
        const float *from = image + y * p.w * p.channels + c;
        float *to = images + (c * room + i * TWO) * area + ((y + p.padding_h) * frame.full_w + p.padding_w) * TWO;
        for (long x = 0; x < p.w; x++, from += p.channels, to += TWO) memcpy(to, from, TWO * sizeof(float));
      }
    for (long piece = 0; piece < pieces; piece++) {
      const long first = first_of(piece), count = first_of(piece + 1) - first;
      const float *from = of_responses + first;
      float *to = gradients + (first * room + i * count) * positions;
      with_constant<most_filters>(count, [&](auto number) {
        for (long j = 0; j < positions; j++, from += filters, to += number) memcpy(to, from, number * sizeof(float));
      });
    }
  }

  /* Of one unit of images, of `count` filters and TWO channels at the tap (a, b), added to numbers that are `step` apart. */
  template <int count> APART void add(const float *image, const float *g, long n, long a, long b, double *to, long step) const {
    V sums[count][2];
    UNROLL for (int f = 0; f < count; f++) sums[f][0] = sums[f][1] = V{};
    image += (a * p.dilation_h * frame.full_w + b * p.dilation_w) * TWO;
    for (long i = 0; i < n; i++, image += area * TWO)
      for (long y = 0; y < p.rows; y++) {
        const float *at = image + y * p.stride_h * frame.full_w * TWO;
        for (long x = 0; x < p.columns; x++, at += p.stride_w * TWO, g += count) {
          const V low = load<V>(at), high = load<V>(at + lanes<V>);
          UNROLL for (int f = 0; f < count; f++) {
            sums[f][0] = sums[f][0] + g[f] * low;
            sums[f][1] = sums[f][1] + g[f] * high;
          }
        }
      }
    UNROLL for (int f = 0; f < count; f++) ::add((const float *)sums[f], to + f * step, TWO);
  }

  /* Of the first n places, of some filters and TWO channels, unit by unit. */
  void add(long block, long piece, long n, double *of_filter) const {
    const long first = first_of(piece), size = p.kernel_h * p.kernel_w, step = size * p.channels;
    with_constant<most_filters>(first_of(piece + 1) - first, [&](auto count) {
      for (long i = 0; i < n; i += UNIT)
        for (long k = 0; k < size; k++)
          add<count>(images + (block * room + i) * area * TWO, gradients + (first * room + i * count) * positions, least(UNIT, n - i),
                     k / p.kernel_w, k % p.kernel_w, of_filter + first * step + k * p.channels + block * TWO, step);
    });
  }
};

/* `of_filter` is zero before; the number of channels is a multiple of TWO. */
extern "C" int convolution_of_filters(const long *shape, const float *x, const float *of_responses, double *of_filter, long filters,
                                      int threads) {
  const Patches &p = *(const Patches *)shape;
  const FilterGradient gradient(p, filters);
  if (gradient.failed()) return OUT_OF_MEMORY;
  for (long first = 0; first < p.n; first += gradient.room) {
    const long n = least(gradient.room, p.n - first), tiles = p.channels / TWO * gradient.pieces;
    PARALLEL for (long i = 0; i < n; i++)
      gradient.pack(i, x + (first + i) * p.h * p.w * p.channels, of_responses + (first + i) * gradient.positions * filters);
    PARALLEL for (long tile = 0; tile < tiles; tile++)
      gradient.add(tile / gradient.pieces, tile % gradient.pieces, n, of_filter);
  }
  return DONE;
}

/* Numbers in a register, with products and sums in one instruction; 0 without those. */
extern "C" int register_width() {
#if defined(__AVX2__) && defined(__FMA__)
  return HAS_WIDE ? 2 * LANES : LANES;
#else
  return 0;
#endif
}
