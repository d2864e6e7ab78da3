/* The layer from responses that are given, the squared norms of patches, and layers one after the other. */

#include "layer.h"

#define FEW_PARTS 4 /* of each of few images */
#define LITTLE 100000 /* products that take as long as the start of several threads */

/* out = A values; without a root, the values themselves. */
template <class Kappa>
static Status forward(const Map &map, const float *given, float *out, int threads) {
  const long outputs = map.outputs, parts = least(least(PARTS, outputs), (outputs * map.window + TILE - 1) / TILE);
  const Root root(map, given, false);
  std::atomic<bool> failed{root.failed()};
  PARALLEL for (long part = 0; part < parts; part++) {
    const long begin = outputs * part / parts, end = outputs * (part + 1) / parts;
    Walk walk(map, begin);
    const long positions = Walk(map, end - 1).last() + 1 - walk.position;
    float *buffer = failed ? nullptr : (float *)calloc(3 * positions + TILE * map.filters, sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    const Norms norms(map, walk.position, positions, buffer, Kappa::norms_cancel);
    outputs_of<Kappa>(map, root, norms, walk, end - begin, out + begin * map.filters, buffer + 3 * positions);
    free(buffer);
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradients of responses, squares and root (the latter two if asked), from that of out. */
template <class Kappa>
static Status backward(const Map &map, const float *given, const float *of_out, void *of_responses, float *of_squares,
                       double *of_root, int threads) {
  const long filters = map.filters, padded = map.padded, parts = parts_of(map.n), of_image = map.rows * map.columns;
  clear_outside(map, (typename Kappa::Response *)of_responses, of_squares);
  const Root root(map, given, true);
  float *sums = of_root ? (float *)malloc(PARTS * filters * padded * sizeof(float)) : nullptr;
  if (of_root) memset(of_root, 0, map.filters * map.filters * sizeof(double));
  std::atomic<bool> failed{root.failed() || (of_root && !sums)};
  for (long first = 0; first < parts && !failed; first += PARTS) { /* some parts at a time, whose sums fit into memory */
    const long count = least(PARTS, parts - first);
    if (sums) memset(sums, 0, count * filters * padded * sizeof(float));
    PARALLEL for (long part = first; part < first + count; part++) {
      const long begin = part * UNIT * of_image, end = least(map.n, (part + 1) * UNIT) * of_image;
      Walk walk(map, begin);
      const long positions = Walk(map, end - 1).last() + 1 - walk.position;
      float *buffer = failed ? nullptr : (float *)calloc(3 * positions + 2 * tile_of(map) * padded, sizeof(float));
      if (!buffer) {
        failed = true;
        continue;
      }
      const Norms norms(map, walk.position, positions, buffer, Kappa::norms_cancel);
      gradients_of<Kappa>(map, root, norms, walk, end - begin, of_out + begin * map.filters, of_responses, of_squares,
                          sums ? sums + (part - first) * filters * padded : nullptr, buffer + 3 * positions);
      free(buffer);
    }
    if (of_root && !failed) add_up(map, sums, count, of_root);
  }
  free(sums);
  return failed ? OUT_OF_MEMORY : DONE;
}

extern "C" int layer_forward(int kind, const float *numbers, const long *shape, const void *responses, const float *squares,
                             const float *root, float *out, int threads) {
  const Map map(shape, numbers, responses, squares);
  EACH_KERNEL_AND_RESPONSE(forward, map, root, out, threads)
}

extern "C" int layer_backward(int kind, const float *numbers, const long *shape, const void *responses, const float *squares,
                              const float *root, const float *of_out, void *of_responses, float *of_squares, double *of_root,
                              int threads) {
  const Map map(shape, numbers, responses, squares);
  if (root && !map.uniform && map.filters > WIDEST) return TOO_WIDE;
  EACH_KERNEL_AND_RESPONSE(backward, map, root, of_out, of_responses, of_squares, of_root, threads)
}

/* Squared norms of all patches. `pixels` has room for (n, h, w). */
extern "C" int patch_squares(const long *shape, const float *x, float *pixels, float *squares, int threads) {
  const Patches &p = *(const Patches *)shape;
  std::atomic<bool> failed{false};
  PARALLEL for (long i = 0; i < p.n; i++) {
    float *line = (float *)malloc(p.line() * sizeof(float));
    if (line) image_squares(p, x + i * p.h * p.w * p.channels, pixels + i * p.h * p.w, squares + i * p.rows * p.columns, line);
    else failed = true;
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
    float *line = p.single() ? nullptr : (float *)malloc(p.line() * sizeof(float));
    if (!p.single()) memset(image, 0, p.h * p.w * sizeof(float));
    if (!line && !p.single()) failed = true;
    for (long y = 0; line && y < p.rows; y++) {
      const float *given = of_squares + (i * p.rows + y) * p.columns;
      memset(line, 0, p.line() * sizeof(float));
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

/* Responses of few images to packed filters, shared among threads by filters first, so that each reads its own; the buffer has room
for the images with their frame. */
static Status respond(const Patches &p, const float *x, const float *packed, float *buffer, float *out, long filters, int threads) {
  const Frame frame = frame_of(p);
  const long row = p.stride_h * frame.full_w * p.channels, blocks = (filters + TWO - 1) / TWO, parts = blocks * p.n * FEW_PARTS;
  long taps, *offsets = offsets_of(p, frame, taps);
  if (!offsets) return OUT_OF_MEMORY;
  if (!frame.same()) memset(buffer, 0, p.n * frame.size() * sizeof(float));
  for (long i = 0; i < p.n && !frame.same(); i++) frame.of(x + i * p.h * p.w * p.channels, buffer + i * frame.size());
  const float *images = frame.same() ? x : buffer;
  PARALLEL for (long part = 0; part < parts; part++) {
    const long f = part / FEW_PARTS / p.n * TWO, i = part / FEW_PARTS % p.n, share = part % FEW_PARTS;
    const long first = p.rows * share / FEW_PARTS, end = p.rows * (share + 1) / FEW_PARTS;
    Rows{images + i * frame.size() + first * row, row, p.stride_w * p.channels, taps, offsets, packed,
         out + (i * p.rows + first) * p.columns * filters, filters, end - first, p.columns}
        .respond(f, least(f + TWO, filters));
  }
  free(offsets);
  return DONE;
}

static int threads_for(long products, int threads) { return products < LITTLE ? 1 : threads; }

/* Layers one after the other, without gradients: what a network does with few images, where calls from Python would take longer. */
extern "C" int chain(const Layer *layers, long count, const float *x, float *out, int threads) {
  long positions = 0, responses = 0, framed = 0;
  for (const Layer *layer = layers; layer < layers + count; layer++) {
    const Patches &p = *(const Patches *)layer->patches;
    const long inside = p.n * p.h * p.w, outside = p.n * p.rows * p.columns;
    positions = most(positions, most(inside, outside));
    responses = most(responses, outside * layer->map[3]);
    framed = most(framed, p.n * frame_of(p).size());
  }
  float *buffer = (float *)malloc((2 * positions + 3 * responses + framed) * sizeof(float));
  if (!buffer) return OUT_OF_MEMORY;
  float *pixels = buffer, *norms = pixels + positions, *responded = norms + positions;
  float *results[2] = {responded + responses, responded + 2 * responses}, *frame = results[1] + responses;
  int status = DONE;
  for (long i = 0; i < count && status == DONE; i++) {
    const Layer &layer = layers[i];
    const Patches &p = *(const Patches *)layer.patches;
    float *to = i + 1 == count ? out : results[i % 2];
    const long filters = layer.map[3], values = p.n * p.rows * p.columns * filters;
    status = patch_squares(layer.patches, x, pixels, norms, threads_for(p.n * p.h * p.w * p.channels, threads));
    if (status == DONE && layer.packed)
      status = respond(p, x, layer.packed, frame, responded, filters,
                       threads_for(values * p.kernel_h * p.kernel_w * p.channels, threads));
    if (status == DONE)
      status = layer_forward(layer.kind, layer.numbers, layer.map, layer.packed ? responded : x, p.single() ? pixels : norms,
                             layer.root, to, threads_for(values * filters, threads));
    x = to;
  }
  free(buffer);
  return status;
}

/* Whether bytes differ; many of them are shared among threads. */
extern "C" int differ(const char *a, const char *b, size_t bytes, int threads) {
  const size_t part = 1 << 17;
  if (bytes <= part) return memcmp(a, b, bytes) != 0;
  std::atomic<bool> found{false};
  PARALLEL for (size_t first = 0; first < bytes; first += part)
    if (memcmp(a + first, b + first, bytes - first < part ? bytes - first : part)) found = true;
  return found;
}
