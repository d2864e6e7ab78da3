/* The kernel layer in float32, in one pass over memory each way:  F' = A(W) [ kappa(W E N^-1) N^degree ] P

Images are channels last, (n, h, w, c). `responses` is W E, which torch's convolution computes; `squares` is the diagonal of
N^2; P averages windows that do not overlap. Raw pointers and no headers of torch: it compiles in two seconds.
torchckn/nn/native/__init__.py builds, loads and calls it. The same layer in plain torch: torchckn/nn/functional.py.

Work is cut into parts whose number does not depend on the number of threads, and neither does any result. */

#include "common.h"

#define TILE 16    /* output positions at a time */
#define TINY 1.17549435e-38f /* up to this, a squared norm is that of a zero patch */
#define PI 3.14159265358979f
#define WIDEST 32 /* filters of a layer whose root has a gradient here; wider ones are faster with a library */

/* Elementary functions without branches or calls, which compilers vectorize. Polynomials of Cephes: 2 units in the last place. */

INLINE float exp_(float x) {
  x = x < -87.0f ? -87.0f : x; /* a NaN stays a NaN */
  x = x > 88.0f ? 88.0f : x;
  float shifted = x * 1.44269504f + 12582912.0f; /* its last bits are the integer k nearest to x / log 2 */
  float k = shifted - 12582912.0f;
  float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, 4);
  bits = (bits << 23) + 0x3f800000u; /* 2^k */
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

INLINE float acos_(float t) { /* asin by a polynomial up to 1/2; above, acos t = 2 asin sqrt((1 - t) / 2) */
  float size = fabsf(t);
  int far = size > 0.5f;
  float z = far ? 0.5f * (1.0f - size) : size * size;
  float s = far ? sqrtf(z) : size;
  float p = 4.2163199048e-2f;
  p = p * z + 2.4181311049e-2f;
  p = p * z + 4.5470025998e-2f;
  p = p * z + 7.4953002686e-2f;
  p = p * z + 1.6666752422e-1f;
  float arc_sine = p * z * s + s;
  float arc_cosine = far ? 2 * arc_sine : 0.5f * PI - arc_sine;
  return t < 0 ? PI - arc_cosine : arc_cosine;
}

/* kappa(t) and kappa'(t) of each kernel, from its numbers. In the order of KERNELS in __init__.py. */

struct Rbf { /* numbers: 1 / sigma^2 */
  INLINE void at(float t, const float *numbers, float &value, float &slope) {
    value = exp_(numbers[0] * t - numbers[0]);
    slope = numbers[0] * value;
  }
};

struct ArcCosine1 {
  INLINE void at(float t, const float *, float &value, float &slope) {
    t = t < -1 ? -1 : t > 1 ? 1 : t;
    float supplement = PI - acos_(t);
    value = (sqrtf((1 - t) * (1 + t)) + supplement * t) * (1 / PI);
    slope = supplement * (1 / PI);
  }
};

struct ArcCosine2 {
  INLINE void at(float t, const float *, float &value, float &slope) {
    t = t < -1 ? -1 : t > 1 ? 1 : t;
    float supplement = PI - acos_(t), sine = sqrtf((1 - t) * (1 + t));
    value = (supplement * (1 + 2 * t * t) + 3 * sine * t) * (1 / (3 * PI));
    slope = (sine + supplement * t) * (4 / (3 * PI));
  }
};

/* A block of rows and vectors of a product; see below. */
template <class V, int rows, int vectors>
INLINE void block(const float *a, long row, long column, const float *b, float *out, long k, long columns, bool add) {
  V sums[rows][vectors];
  UNROLL for (int r = 0; r < rows; r++)
    UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = add ? load<V>(out + r * columns + v * lanes<V>) : V{};
  for (long j = 0; j < k; j++) {
    V factors[vectors];
    UNROLL for (int v = 0; v < vectors; v++) factors[v] = load<V>(b + j * columns + v * lanes<V>);
    UNROLL for (int r = 0; r < rows; r++)
      UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = sums[r][v] + a[r * row + j * column] * factors[v];
  }
  UNROLL for (int r = 0; r < rows; r++)
    UNROLL for (int v = 0; v < vectors; v++) store(out + r * columns + v * lanes<V>, sums[r][v]);
}

/* Columns of out (m, columns) = a (m, k) b (k, columns), or added to it, from `first` on, as far as such blocks go; where the next
one would begin. a has any strides; m and columns are multiples of LANES. There are at least 8 sums, which fill the pipeline. */
template <class V, int rows, int vectors>
INLINE long columns_of_product(long first, const float *a, long row, long column, const float *b, float *out, long m, long k,
                               long columns, bool add) {
  for (; first + vectors * lanes<V> <= columns; first += vectors * lanes<V>)
    for (long i = 0; i < m; i += rows)
      block<V, rows, vectors>(a + i * row, row, column, b + first, out + i * columns + first, k, columns, add);
  return first;
}

INLINE void product(const float *a, long row, long column, const float *b, float *out, long m, long k, long columns, bool add) {
  long c = 0;
  if (HAS_WIDE) {
    c = columns_of_product<Wide, 8, 2>(c, a, row, column, b, out, m, k, columns, add);
    c = columns_of_product<Wide, 8, 1>(c, a, row, column, b, out, m, k, columns, add);
  }
  c = columns_of_product<Vec, 4, 2>(c, a, row, column, b, out, m, k, columns, add);
  columns_of_product<Vec, 8, 1>(c, a, row, column, b, out, m, k, columns, add);
}

/* What a pass works on: maps of n images, and windows of positions that are averaged into one output. */
struct Map {
  long n, h, w, filters, window_h, window_w, degree; /* the order in which Python passes them */
  const float *numbers, *responses, *squares;
  long rows, columns, window, outputs, padded;
  float share; /* of a position in the average over its window */

  Map(const long *shape, const float *numbers, const float *responses, const float *squares)
      : n(shape[0]), h(shape[1]), w(shape[2]), filters(shape[3]), window_h(shape[4]), window_w(shape[5]), degree(shape[6]),
        numbers(numbers), responses(responses), squares(squares), rows(h / window_h), columns(w / window_w),
        window(window_h * window_w), outputs(n * rows * columns), padded((filters + LANES - 1) / LANES * LANES),
        share(1.0f / window) {}
};

/* Walks through the outputs of all images, and knows the first position of each one's window. */
struct Walk {
  const Map &map;
  long x, y, position;

  Walk(const Map &map, long output) : map(map), x(output % map.columns), y(output / map.columns % map.rows) {
    position = (output / map.columns / map.rows * map.h + y * map.window_h) * map.w + x * map.window_w;
  }
  long last() const { return position + (map.window_h - 1) * map.w + map.window_w - 1; }
  void next() {
    position += map.window_w;
    if (++x < map.columns) return;
    x = 0;
    position += map.w - map.columns * map.window_w + (map.window_h - 1) * map.w;
    if (++y < map.rows) return;
    y = 0;
    position += (map.h - map.rows * map.window_h) * map.w;
  }
};

/* What a position's norm n contributes: t = r inverse, value = scale kappa(t), and of a gradient g of the value
d/dr = g lower kappa'(t) and d/dn^2 = sum g lower inverse (degree kappa(t) - t kappa'(t)) / 2. */
struct Norms {
  long first;
  float *inverse, *scale, *lower;

  /* of `count` positions, in a buffer that has room for three numbers of each */
  Norms(const Map &map, long first, long count, float *buffer)
      : first(first), inverse(buffer), scale(buffer + count), lower(buffer + 2 * count) {
    const float *__restrict squares = map.squares + first;
    float *__restrict inverse = this->inverse, *__restrict scale = this->scale, *__restrict lower = this->lower;
    const float share = map.share;
    SIMD for (long i = 0; i < count; i++) {
      const bool zero = squares[i] <= TINY; /* its value is 0, or kappa(0) if the degree is 0; it has no gradient */
      const float norm = sqrtf(squares[i]);
      inverse[i] = zero ? 0 : 1 / norm;
      scale[i] = zero ? 0 : share * norm;
      lower[i] = zero ? 0 : share;
    }
    if (map.degree == 0)
      SIMD for (long i = 0; i < count; i++) scale[i] = share, lower[i] *= inverse[i];
    for (long k = 1; k < map.degree; k++)
      SIMD for (long i = 0; i < count; i++) {
        const float norm = scale[i] == 0 ? 0 : 1 / inverse[i];
        scale[i] *= norm, lower[i] *= norm;
      }
  }
};

/* kappa(r / n) n^degree of a position, added to `values`. */
template <class Kappa>
INLINE void add_values(const Map &map, const long filters, const Norms &norms, long position, float *__restrict values) {
  const float *__restrict responses = map.responses + position * filters, *__restrict numbers = map.numbers;
  const float inverse = norms.inverse[position - norms.first], scale = norms.scale[position - norms.first];
  SIMD for (long c = 0; c < filters; c++) {
    float value, slope;
    Kappa::at(responses[c] * inverse, numbers, value, slope);
    values[c] += scale * value;
  }
}

/* The same, and the gradients of responses and squared norm (if asked) from that of the values, g. */
template <class Kappa>
INLINE void add_gradients(const Map &map, const long filters, const Norms &norms, long position, float *__restrict values,
                          const float *__restrict g, float *__restrict of_responses, float *__restrict of_squares) {
  const float *__restrict responses = map.responses + position * filters, *__restrict numbers = map.numbers;
  const float inverse = norms.inverse[position - norms.first], scale = norms.scale[position - norms.first];
  const float lower = norms.lower[position - norms.first], degree = map.degree;
  float sum = 0;
  SUM for (long c = 0; c < filters; c++) {
    float value, slope, t = responses[c] * inverse;
    Kappa::at(t, numbers, value, slope);
    values[c] += scale * value;
    of_responses[position * filters + c] = g[c] * lower * slope;
    sum += g[c] * (degree * value - t * slope);
  }
  if (of_squares) of_squares[position] = 0.5f * lower * inverse * sum;
}

/* Outputs that follow each other, averages over windows, in rows that are `step` apart; and gradients, if asked, from those of
the values, in rows that are `step` apart, too. */
template <class Kappa, bool gradients>
INLINE void pooled(const Map &map, const long filters, const Norms &norms, Walk &walk, long count, float *values, const float *g,
                   long step, float *of_responses, float *of_squares) {
  for (long i = 0; i < count; i++, walk.next(), values += step, g += gradients ? step : 0) {
    for (long c = 0; c < filters; c++) values[c] = 0;
    for (long a = 0; a < map.window_h; a++)
      for (long b = 0; b < map.window_w; b++) {
        const long position = walk.position + a * map.w + b;
        if (gradients) add_gradients<Kappa>(map, filters, norms, position, values, g, of_responses, of_squares);
        else add_values<Kappa>(map, filters, norms, position, values);
      }
  }
}

/* The same, with loops of a fixed length for the usual small numbers of filters. */
template <class Kappa, bool gradients>
static void pooled(const Map &map, const Norms &norms, Walk &walk, long count, float *values, const float *g, long step,
                   float *of_responses, float *of_squares) {
  if (map.filters == 8)
    pooled<Kappa, gradients>(map, 8, norms, walk, count, values, g, step, of_responses, of_squares);
  else if (map.filters == 16)
    pooled<Kappa, gradients>(map, 16, norms, walk, count, values, g, step, of_responses, of_squares);
  else if (map.filters == 32)
    pooled<Kappa, gradients>(map, 32, norms, walk, count, values, g, step, of_responses, of_squares);
  else
    pooled<Kappa, gradients>(map, map.filters, norms, walk, count, values, g, step, of_responses, of_squares);
}

/* The root (f, f), or its transpose, with zeros around it. */
static float *padded_copy(const float *root, long filters, long padded, bool transposed) {
  float *copy = (float *)calloc(padded * padded, sizeof(float));
  for (long i = 0; copy && i < filters; i++)
    for (long j = 0; j < filters; j++) copy[i * padded + j] = transposed ? root[j * filters + i] : root[i * filters + j];
  return copy;
}

/* out = A values; without a root, the values themselves. */
template <class Kappa>
static Status forward(const Map &map, const float *root, float *out, int threads) {
  const long filters = map.filters, padded = map.padded, outputs = map.outputs;
  float *copy = root ? padded_copy(root, filters, padded, true) : nullptr;
  std::atomic<bool> failed{root && !copy};
  PARALLEL for (long part = 0; part < PARTS; part++) {
    const long begin = outputs * part / PARTS, end = outputs * (part + 1) / PARTS;
    if (begin == end) continue;
    Walk walk(map, begin);
    const long positions = Walk(map, end - 1).last() + 1 - walk.position;
    float *buffer = failed ? nullptr : (float *)calloc(2 * TILE * padded + 3 * positions, sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    float *values = buffer + 3 * positions, *products = values + TILE * padded;
    const Norms norms(map, walk.position, positions, buffer);
    for (long first = begin; first < end; first += TILE) {
      const long tile = least(TILE, end - first);
      float *to = root ? values : out + first * filters;
      pooled<Kappa, false>(map, norms, walk, tile, to, nullptr, root ? padded : filters, nullptr, nullptr);
      if (!root) continue;
      const bool direct = tile == TILE && padded == filters;
      product(values, padded, 1, copy, direct ? out + first * filters : products, TILE, filters, padded, false);
      for (long i = 0; i < tile && !direct; i++)
        memcpy(out + (first + i) * filters, products + i * padded, filters * sizeof(float));
    }
    free(buffer);
  }
  free(copy);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradients of responses, squares and root (the latter two if asked), from that of out. */
template <class Kappa>
static Status backward(const Map &map, const float *root, const float *of_out, float *of_responses, float *of_squares,
                       float *of_root, int threads) {
  const long filters = map.filters, padded = map.padded, outputs = map.outputs;
  const long tiles = filters > WIDEST ? 1 : TILE;
  if (map.h % map.window_h || map.w % map.window_w) { /* there are positions that no window contains */
    memset(of_responses, 0, map.n * map.h * map.w * filters * sizeof(float));
    if (of_squares) memset(of_squares, 0, map.n * map.h * map.w * sizeof(float));
  }
  float *copy = root ? padded_copy(root, filters, padded, false) : nullptr;
  float *sums = of_root ? (float *)calloc(PARTS * padded * padded, sizeof(float)) : nullptr;
  std::atomic<bool> failed{(root && !copy) || (of_root && !sums)};
  PARALLEL for (long part = 0; part < PARTS; part++) {
    const long begin = outputs * part / PARTS, end = outputs * (part + 1) / PARTS;
    if (begin == end) continue;
    Walk walk(map, begin);
    const long positions = Walk(map, end - 1).last() + 1 - walk.position;
    float *buffer = failed ? nullptr : (float *)calloc(3 * tiles * padded + 3 * positions, sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    float *values = buffer + 3 * positions, *of_outs = values + tiles * padded, *of_values = of_outs + tiles * padded;
    const Norms norms(map, walk.position, positions, buffer);
    for (long first = begin; first < end; first += tiles) {
      const long tile = least(tiles, end - first);
      if (!root) {
        pooled<Kappa, true>(map, norms, walk, tile, values, of_out + first * filters, filters, of_responses, of_squares);
        continue;
      }
      const bool direct = tile == TILE && padded == filters;
      for (long i = 0; i < tile && !direct; i++)
        memcpy(of_outs + i * padded, of_out + (first + i) * filters, filters * sizeof(float));
      const float *given = direct ? of_out + first * filters : of_outs;
      product(given, padded, 1, copy, of_values, TILE, filters, padded, false);
      pooled<Kappa, true>(map, norms, walk, tile, values, of_values, padded, of_responses, of_squares);
      if (of_root) product(given, 1, padded, values, sums + part * padded * padded, padded, tile, padded, true);
    }
    free(buffer);
  }
  if (of_root && !failed) {
    memset(of_root, 0, filters * filters * sizeof(float));
    for (long part = 0; part < PARTS; part++)
      for (long i = 0; i < filters; i++)
        for (long j = 0; j < filters; j++) of_root[i * filters + j] += sums[(part * padded + i) * padded + j];
  }
  free(copy);
  free(sums);
  return failed ? OUT_OF_MEMORY : DONE;
}

#define EACH_KERNEL(function, ...)                           \
  switch (kind) {                                            \
    case 0: return function<Rbf>(__VA_ARGS__);               \
    case 1: return function<ArcCosine1>(__VA_ARGS__);        \
    case 2: return function<ArcCosine2>(__VA_ARGS__);        \
    default: return UNKNOWN_KERNEL;                          \
  }

extern "C" int layer_forward(int kind, const float *numbers, const long *shape, const float *responses, const float *squares,
                             const float *root, float *out, int threads) {
  const Map map(shape, numbers, responses, squares);
  EACH_KERNEL(forward, map, root, out, threads)
}

extern "C" int layer_backward(int kind, const float *numbers, const long *shape, const float *responses, const float *squares,
                              const float *root, const float *of_out, float *of_responses, float *of_squares, float *of_root,
                              int threads) {
  const Map map(shape, numbers, responses, squares);
  if (root && map.filters > WIDEST) return TOO_WIDE;
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

extern "C" int convolution_of_packed(const long *, const float *, const float *, float *, long, int);

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
    if (layer.packed) status = convolution_of_packed(layer.patches, x, layer.packed, responded, layer.map[3], threads);
    if (status == DONE) status = patch_squares(layer.patches, x, pixels, norms, threads);
    if (status == DONE)
      status = layer_forward(layer.kind, layer.numbers, layer.map, layer.packed ? responded : x, p.single() ? pixels : norms,
                             layer.root, to, threads);
    x = to;
  }
  free(buffer);
  return status;
}

/* Whether bytes differ. */
extern "C" int differ(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) != 0; }
