/* The kernel layer in float32, in one pass over memory each way:  F' = A(W) [ kappa(W E N^-1) N^degree ] P

Images are channels last, (n, h, w, c). `responses` is W E; `squares` is the diagonal of N^2; P averages windows that do not
overlap. Raw pointers and no headers of torch: it compiles in seconds. torchckn/nn/native/__init__.py builds, loads and calls it.
The same layer in plain torch: torchckn/nn/functional.py. Read next: layer.cpp and direct.cpp, which go through all images.

Work is cut into parts whose number does not depend on the number of threads, and neither does any result. Parts whose sums over
images are added up are UNIT images each, and they are added up in double precision: so a sum does not depend either on which other
images there are in the same call. */

#pragma once

#include "common.h"

#define TILE 16    /* output positions at a time */
#define TINY 1.17549435e-38f /* up to this, a squared norm is that of a zero patch */
#define PI 3.14159265358979f
#define WIDEST 32 /* filters of a layer whose root has a gradient here; wider ones are faster with a library */

/* Elementary functions without branches or calls, which compilers vectorize: 2 units in the last place. */

INLINE float exp2_(float y) {
  y = y < -126.0f ? -126.0f : y; /* a NaN stays a NaN; y is at most a few units above 0 */
  float shifted = y + 12582912.0f; /* its last bits are the integer k nearest to y */
  float r = y - (shifted - 12582912.0f);
  float p = 1.5353361714e-4f; /* the best polynomial with p(0) = 1, which makes kappa(1) = 1: relative error 2e-9 */
  p = p * r + 1.3398874478e-3f;
  p = p * r + 9.6184373590e-3f;
  p = p * r + 5.5503324709e-2f;
  p = p * r + 2.4022647914e-1f;
  p = p * r + 6.9314720286e-1f;
  p = p * r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, 4);
  bits = (bits << 23) + 0x3f800000u; /* 2^k */
  float power;
  memcpy(&power, &bits, 4);
  return p * power;
}

INLINE float acos_(float t) { /* asin by a polynomial of Cephes up to 1/2; above, acos t = 2 asin sqrt((1 - t) / 2) */
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
    const float scale = numbers[0] * 1.44269504f;
    value = exp2_(scale * t - scale);
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
  long n, h, w, filters, window_h, window_w, degree, uniform; /* the order in which Python passes them */
  const float *numbers, *responses, *squares;
  long rows, columns, window, outputs, padded;
  float share; /* of a position in the average over its window */

  Map(const long *shape, const float *numbers, const float *responses, const float *squares)
      : n(shape[0]), h(shape[1]), w(shape[2]), filters(shape[3]), window_h(shape[4]), window_w(shape[5]), degree(shape[6]),
        uniform(shape[7]), numbers(numbers), responses(responses), squares(squares), rows(h / window_h), columns(w / window_w),
        window(window_h * window_w), outputs(n * rows * columns), padded((filters + LANES - 1) / LANES * LANES),
        share(1.0f / window) {}

  /* Some rows of outputs of one image, from a position on, whose responses are here. */
  Map some_rows(long count, long position, const float *here) const {
    Map some = *this;
    some.n = 1, some.h = count * window_h, some.rows = count, some.outputs = count * columns;
    some.responses = here, some.squares = squares + position;
    return some;
  }
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

/* The same, and the gradients of responses and squared norm (if asked) from that of the values, g. The gradients of responses may
take the place of the responses. */
template <class Kappa>
INLINE void add_gradients(const Map &map, const long filters, const Norms &norms, long position, float *__restrict values,
                          const float *__restrict g, float *of_responses, float *__restrict of_squares) {
  const float *responses = map.responses + position * filters, *__restrict numbers = map.numbers;
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

/* A root with one number on its diagonal and another beside it, as that of filters which are the channels: A v = a v + b sum(v). */
struct Uniform {
  float a, b;

  Uniform(const float *root, long filters) : a(root[0] - (filters > 1 ? root[1] : 0)), b(filters > 1 ? root[1] : 0) {}
  void times(const float *__restrict v, float *__restrict out, long rows, long filters) const {
    for (; rows > 0; rows--, v += filters, out += filters) {
      float sum = 0;
      SUM for (long c = 0; c < filters; c++) sum += v[c];
      SIMD for (long c = 0; c < filters; c++) out[c] = a * v[c] + b * sum;
    }
  }
};

/* A, or its transpose, ready for products; without a root, nothing is multiplied. */
struct Root {
  const float *given;
  bool matrix;
  float *copy;

  Root(const Map &map, const float *root, bool transposed)
      : given(root), matrix(root && !map.uniform),
        copy(matrix ? padded_copy(root, map.filters, map.padded, transposed) : nullptr) {}
  ~Root() { free(copy); }
  bool failed() const { return matrix && !copy; }
};

/* Outputs that follow each other, A values, or the values themselves without a root; the buffer has room for 2 TILE padded numbers. */
template <class Kappa>
static void outputs_of(const Map &map, const Root &root, const Norms &norms, Walk &walk, long count, float *out, float *buffer) {
  const long filters = map.filters, padded = map.padded;
  float *values = buffer, *products = values + TILE * padded;
  for (; count > 0; count -= TILE, out += TILE * filters) {
    const long tile = least(TILE, count);
    pooled<Kappa, false>(map, norms, walk, tile, root.given ? values : out, nullptr, root.matrix ? padded : filters, nullptr,
                         nullptr);
    if (root.given && !root.matrix) Uniform(root.given, filters).times(values, out, tile, filters);
    if (!root.matrix) continue;
    const bool direct = tile == TILE && padded == filters;
    product(values, padded, 1, root.copy, direct ? out : products, TILE, filters, padded, false);
    for (long i = 0; i < tile && !direct; i++) memcpy(out + i * filters, products + i * padded, filters * sizeof(float));
  }
}

/* Outputs at a time in the backward pass. */
static long tile_of(const Map &map) { return map.filters > WIDEST && !map.uniform ? 1 : TILE; }

/* The gradients of responses and squares, from that of outputs that follow each other, and that of the root, which is added to
`sums` (padded, padded); the latter two if asked. The buffer has room for 3 tile_of(map) padded numbers. */
template <class Kappa>
static void gradients_of(const Map &map, const Root &root, const Norms &norms, Walk &walk, long count, const float *of_out,
                         float *of_responses, float *of_squares, float *sums, float *buffer) {
  const long filters = map.filters, padded = map.padded, tiles = tile_of(map);
  float *values = buffer, *of_outs = values + tiles * padded, *of_values = of_outs + tiles * padded;
  for (; count > 0; count -= tiles, of_out += tiles * filters) {
    const long tile = least(tiles, count);
    if (!root.matrix) {
      if (root.given) Uniform(root.given, filters).times(of_out, of_values, tile, filters);
      const float *g = root.given ? of_values : of_out;
      pooled<Kappa, true>(map, norms, walk, tile, values, g, filters, of_responses, of_squares);
      continue;
    }
    const bool direct = tile == TILE && padded == filters;
    for (long i = 0; i < tile && !direct; i++) memcpy(of_outs + i * padded, of_out + i * filters, filters * sizeof(float));
    const float *given = direct ? of_out : of_outs;
    product(given, padded, 1, root.copy, of_values, TILE, filters, padded, false);
    pooled<Kappa, true>(map, norms, walk, tile, values, of_values, padded, of_responses, of_squares);
    if (sums) product(given, 1, padded, values, sums, padded, tile, padded, true);
  }
}

/* Positions that no window contains have no gradient. Those inside windows are not cleared: they may still hold responses. */
static void clear_outside(const Map &map, float *of_responses, float *of_squares) {
  const long inside = map.columns * map.window_w;
  for (long line = 0; line < map.n * map.h; line++) {
    const long first = line % map.h < map.rows * map.window_h ? inside : 0, begin = line * map.w + first, count = map.w - first;
    if (of_responses) memset(of_responses + begin * map.filters, 0, count * map.filters * sizeof(float));
    if (of_squares) memset(of_squares + begin, 0, count * sizeof(float));
  }
}

/* Add the sums of some parts to the gradient of the root (f, f). */
static void add_up(const Map &map, const float *sums, long parts, double *of_root) {
  const long filters = map.filters, padded = map.padded;
  for (long part = 0; part < parts; part++)
    for (long i = 0; i < filters; i++) add(sums + (part * padded + i) * padded, of_root + i * filters, filters);
}

#define EACH_KERNEL(function, ...)                           \
  switch (kind) {                                            \
    case 0: return function<Rbf>(__VA_ARGS__);               \
    case 1: return function<ArcCosine1>(__VA_ARGS__);        \
    case 2: return function<ArcCosine2>(__VA_ARGS__);        \
    default: return UNKNOWN_KERNEL;                          \
  }
