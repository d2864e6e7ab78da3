/* The layer from responses that are given, the squared norms of patches, and layers one after the other. */

#include "layer.h"

/* out = A values; without a root, the values themselves. */
template <class Kappa>
static Status forward(const Map &map, const float *given, float *out, int threads) {
  const long outputs = map.outputs;
  const Root root(map, given, true);
  std::atomic<bool> failed{root.failed()};
  PARALLEL for (long part = 0; part < PARTS; part++) {
    const long begin = outputs * part / PARTS, end = outputs * (part + 1) / PARTS;
    if (begin == end) continue;
    Walk walk(map, begin);
    const long positions = Walk(map, end - 1).last() + 1 - walk.position;
    float *buffer = failed ? nullptr : (float *)calloc(3 * positions + 2 * TILE * map.padded, sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    const Norms norms(map, walk.position, positions, buffer);
    outputs_of<Kappa>(map, root, norms, walk, end - begin, out + begin * map.filters, buffer + 3 * positions);
    free(buffer);
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradients of responses, squares and root (the latter two if asked), from that of out. */
template <class Kappa>
static Status backward(const Map &map, const float *given, const float *of_out, float *of_responses, float *of_squares,
                       double *of_root, int threads) {
  const long padded = map.padded, parts = parts_of(map.n), of_image = map.rows * map.columns;
  clear_outside(map, of_responses, of_squares);
  const Root root(map, given, false);
  float *sums = of_root ? (float *)malloc(PARTS * padded * padded * sizeof(float)) : nullptr;
  if (of_root) memset(of_root, 0, map.filters * map.filters * sizeof(double));
  std::atomic<bool> failed{root.failed() || (of_root && !sums)};
  for (long first = 0; first < parts && !failed; first += PARTS) { /* some parts at a time, whose sums fit into memory */
    const long count = least(PARTS, parts - first);
    if (sums) memset(sums, 0, count * padded * padded * sizeof(float));
    PARALLEL for (long part = first; part < first + count; part++) {
      const long begin = part * UNIT * of_image, end = least(map.n, (part + 1) * UNIT) * of_image;
      Walk walk(map, begin);
      const long positions = Walk(map, end - 1).last() + 1 - walk.position;
      float *buffer = failed ? nullptr : (float *)calloc(3 * positions + 3 * tile_of(map) * padded, sizeof(float));
      if (!buffer) {
        failed = true;
        continue;
      }
      const Norms norms(map, walk.position, positions, buffer);
      gradients_of<Kappa>(map, root, norms, walk, end - begin, of_out + begin * map.filters, of_responses, of_squares,
                          sums ? sums + (part - first) * padded * padded : nullptr, buffer + 3 * positions);
      free(buffer);
    }
    if (of_root && !failed) add_up(map, sums, count, of_root);
  }
  free(sums);
  return failed ? OUT_OF_MEMORY : DONE;
}

extern "C" int layer_forward(int kind, const float *numbers, const long *shape, const float *responses, const float *squares,
                             const float *root, float *out, int threads) {
  const Map map(shape, numbers, responses, squares);
  EACH_KERNEL(forward, map, root, out, threads)
}

extern "C" int layer_backward(int kind, const float *numbers, const long *shape, const float *responses, const float *squares,
                              const float *root, const float *of_out, float *of_responses, float *of_squares, double *of_root,
                              int threads) {
  const Map map(shape, numbers, responses, squares);
  if (root && !map.uniform && map.filters > WIDEST) return TOO_WIDE;
  EACH_KERNEL(backward, map, root, of_out, of_responses, of_squares, of_root, threads)
}

/* |x|^2 of each pixel, with a fixed number of channels where there are few. */
INLINE void pixel_squares(const float *__restrict x, float *__restrict squares, long pixels, const long channels) {
  for (long q = 0; q < pixels; q++) {
    float sum = 0;
    SUM for (long c = 0; c < channels; c++) sum += x[q * channels + c] * x[q * channels + c];
    squares[q] = sum;
  }
}

/* Squared norms of all patches: over channels, then a box filter, over rows first. `pixels` has room for (n, h, w). */
extern "C" int patch_squares(const long *shape, const float *x, float *pixels, float *squares, int threads) {
  const Patches &p = *(const Patches *)shape;
  std::atomic<bool> failed{false};
  PARALLEL for (long i = 0; i < p.n; i++) {
    float *image = pixels + i * p.h * p.w;
    const float *source = x + i * p.h * p.w * p.channels;
    switch (p.channels) {
      case 1: pixel_squares(source, image, p.h * p.w, 1); break;
      case 3: pixel_squares(source, image, p.h * p.w, 3); break;
      case 8: pixel_squares(source, image, p.h * p.w, 8); break;
      default: pixel_squares(source, image, p.h * p.w, p.channels);
    }
    if (p.single()) continue; /* pixels are squares */
    float *line = (float *)calloc(p.w + 2 * p.padding_w, sizeof(float));
    if (!line) failed = true;
    for (long y = 0; line && y < p.rows; y++) {
      float *out = squares + (i * p.rows + y) * p.columns;
      memset(line, 0, (p.w + 2 * p.padding_w) * sizeof(float));
      memset(out, 0, p.columns * sizeof(float));
      for (long a = 0; a < p.kernel_h; a++)
        if (p.inside(p.row(y, a))) add(image + p.row(y, a) * p.w, line + p.padding_w, p.w);
      for (long b = 0; b < p.kernel_w; b++) {
        const float *from = line + b * p.dilation_w;
        if (p.stride_w == 1) add(from, out, p.columns);
        else
          for (long c = 0; c < p.columns; c++) out[c] += from[c * p.stride_w];
      }
    }
    free(line);
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

/* Add to of_x the gradient of x through patch_squares, the box filter transposed. `pixels` has room for (n, h, w). */
extern "C" int patch_squares_backward(const long *shape, const float *x, const float *of_squares, float *pixels, float *of_x,
                                      int threads) {
  const Patches &p = *(const Patches *)shape;
  std::atomic<bool> failed{false};
  PARALLEL for (long i = 0; i < p.n; i++) {
    float *image = pixels + i * p.h * p.w;
    float *line = p.single() ? nullptr : (float *)malloc((p.w + 2 * p.padding_w) * sizeof(float));
    if (!p.single()) memset(image, 0, p.h * p.w * sizeof(float));
    if (!line && !p.single()) failed = true;
    for (long y = 0; line && y < p.rows; y++) {
      const float *given = of_squares + (i * p.rows + y) * p.columns;
      memset(line, 0, (p.w + 2 * p.padding_w) * sizeof(float));
      for (long b = 0; b < p.kernel_w; b++) {
        float *to = line + b * p.dilation_w;
        if (p.stride_w == 1) add(given, to, p.columns);
        else
          for (long c = 0; c < p.columns; c++) to[c * p.stride_w] += given[c];
      }
      for (long a = 0; a < p.kernel_h; a++)
        if (p.inside(p.row(y, a))) add(line + p.padding_w, image + p.row(y, a) * p.w, p.w);
    }
    free(line);
    const float *of_pixels = p.single() ? of_squares + i * p.h * p.w : image;
    for (long q = 0; q < p.h * p.w; q++) {
      const float *__restrict pixel = x + (i * p.h * p.w + q) * p.channels;
      float *__restrict to = of_x + (i * p.h * p.w + q) * p.channels;
      const float factor = 2 * of_pixels[q];
      SIMD for (long c = 0; c < p.channels; c++) to[c] += factor * pixel[c];
    }
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

/* A layer of a chain; Python fills it in. Without filters, the channels themselves are. */
struct Layer {
  const long *patches, *map;
  const float *packed, *numbers, *root;
  long kind;
};

extern "C" int direct_forward_of_packed(int, const float *, const long *, const long *, const float *, const float *,
                                        const float *, const float *, float *, float *, int);

/* Layers one after the other, without gradients: what a network does with few images, where calls from Python would take longer. */
extern "C" int chain(const Layer *layers, long count, const float *x, float *out, int threads) {
  long positions = 0, responses = 0;
  for (const Layer *layer = layers; layer < layers + count; layer++) {
    const Patches &p = *(const Patches *)layer->patches;
    const long filters = layer->map[3], inside = p.n * p.h * p.w, outside = p.n * p.rows * p.columns;
    positions = positions > inside ? positions : inside;
    positions = positions > outside ? positions : outside;
    responses = responses > outside * filters ? responses : outside * filters;
  }
  float *buffer = (float *)malloc((2 * positions + 3 * responses) * sizeof(float));
  if (!buffer) return OUT_OF_MEMORY;
  float *pixels = buffer, *norms = pixels + positions, *responded = norms + positions;
  float *results[2] = {responded + responses, responded + 2 * responses};
  int status = DONE;
  for (long i = 0; i < count && status == DONE; i++) {
    const Layer &layer = layers[i];
    const Patches &p = *(const Patches *)layer.patches;
    float *to = i + 1 == count ? out : results[i % 2];
    const float *squares = p.single() ? pixels : norms;
    status = patch_squares(layer.patches, x, pixels, norms, threads);
    if (status != DONE) break;
    if (layer.packed)
      status = direct_forward_of_packed(layer.kind, layer.numbers, layer.map, layer.patches, x, layer.packed, squares, layer.root,
                                        nullptr, to, threads);
    else status = layer_forward(layer.kind, layer.numbers, layer.map, x, squares, layer.root, to, threads);
    x = to;
  }
  free(buffer);
  return status;
}

/* Whether bytes differ. */
extern "C" int differ(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) != 0; }
