/* The kernel layer in float32, in one pass over memory each way:  F' = A(W) [ kappa(W E N^-1) N^degree ] P

Images are channels last, (n, h, w, c). `responses` is W E; `squares` is the diagonal of N^2; P averages windows that do not
overlap. Raw pointers and no headers of torch: it compiles in seconds. torchckn/nn/native/__init__.py builds, loads and calls it.
The same layer in plain torch: torchckn/nn/functional.py. Read next: layer.cpp and direct.cpp, which go through all images.

Work is cut into parts whose number does not depend on the number of threads, and neither does any result. Parts whose sums over
images are added up are UNIT images each, and they are added up in double precision: so a sum does not depend either on which other
images there are in the same call. */

#pragma once

#include "conv.h"

#define TILE 32    /* output positions at a time */
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

/* A number rounded to the upper half of its bits, as libraries compute convolutions in mixed precision. */
struct BFloat16 {
  uint16_t upper;
};
INLINE float wide(float number) { return number; }
INLINE float wide(BFloat16 number) {
  const uint32_t bits = (uint32_t)number.upper << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
/* To the nearest number, to the even one of two; a NaN stays one. */
INLINE void put(float number, float &to) { to = number; }
INLINE void put(float number, BFloat16 &to) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  to.upper = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : nearest;
}

/* kappa(t) and kappa'(t) of each kernel, from its numbers. In the order of KERNELS in __init__.py. Response: the type of W E. */

struct Unrounded {
  typedef float Response;
  INLINE float cosine(float t) { return t; }
};

struct Rbf : Unrounded { /* numbers: 1 / sigma^2 */
  static constexpr bool norms_cancel = false;
  INLINE void at(float t, const float *numbers, float &value, float &slope) {
    const float scale = numbers[0] * 1.44269504f;
    value = exp2_(scale * t - scale);
    slope = numbers[0] * value;
  }
};

struct ArcCosine1 : Unrounded {
  static constexpr bool norms_cancel = false;
  INLINE void at(float t, const float *, float &value, float &slope) {
    t = t < -1 ? -1 : t > 1 ? 1 : t;
    float supplement = PI - acos_(t);
    value = (sqrtf((1 - t) * (1 + t)) + supplement * t) * (1 / PI);
    slope = supplement * (1 / PI);
  }
};

struct ArcCosine2 : Unrounded {
  static constexpr bool norms_cancel = false;
  INLINE void at(float t, const float *, float &value, float &slope) {
    t = t < -1 ? -1 : t > 1 ? 1 : t;
    float supplement = PI - acos_(t), sine = sqrtf((1 - t) * (1 + t));
    value = (supplement * (1 + 2 * t * t) + 3 * sine * t) * (1 / (3 * PI));
    slope = (sine + supplement * t) * (4 / (3 * PI));
  }
};

struct Linear : Unrounded { /* n (r / n) = r, so all norms may be 1 */
  static constexpr bool norms_cancel = true;
  INLINE void at(float t, const float *, float &value, float &slope) { value = t, slope = 1; }
};

/* Products of a filter and a patch that are rounded may be larger than the norm of the patch. */
template <class Kappa> struct Rounded : Kappa {
  typedef BFloat16 Response;
  INLINE float cosine(float t) { return Kappa::norms_cancel ? t : t < -1 ? -1 : t > 1 ? 1 : t; }
};

/* |x|^2 of each pixel, with a fixed number of channels where there are few. */
INLINE void pixel_squares(const float *__restrict x, float *__restrict squares, long pixels, const long channels) {
  for (long q = 0; q < pixels; q++, x += channels) {
    const long whole = channels / LANES * LANES;
    Vec sums = {};
    for (long c = 0; c < whole; c += LANES) sums = sums + load<Vec>(x + c) * load<Vec>(x + c);
    float sum = whole ? total(sums) : 0;
    for (long c = whole; c < channels; c++) sum += x[c] * x[c];
    squares[q] = sum;
  }
}

/* Squared norms of the patches of an image: over channels, then a box filter, over rows first. `pixels` has room for (h, w); if each
pixel is a patch, they are the squares. `line` has room for a row with its padding. */
static void image_squares(const Patches &p, const float *x, float *pixels, float *squares, float *line) {
  switch (p.channels) {
    case 1: pixel_squares(x, pixels, p.h * p.w, 1); break;
    case 3: pixel_squares(x, pixels, p.h * p.w, 3); break;
    case 8: pixel_squares(x, pixels, p.h * p.w, 8); break;
    default: pixel_squares(x, pixels, p.h * p.w, p.channels);
  }
  for (long y = 0; y < p.rows && !p.single(); y++, squares += p.columns) {
    memset(line, 0, p.line() * sizeof(float));
    memset(squares, 0, p.columns * sizeof(float));
    for (long a = 0; a < p.kernel_h; a++)
      if (p.inside(p.row(y, a))) add(pixels + p.row(y, a) * p.w, line + p.padding_w, p.w);
    for (long b = 0; b < p.kernel_w; b++) {
      const float *from = line + b * p.dilation_w;
      if (p.stride_w == 1) add(from, squares, p.columns);
      else
        for (long c = 0; c < p.columns; c++) squares[c] += from[c * p.stride_w];
    }
  }
}

/* What a pass works on: maps of n images, and windows of positions that are averaged into one output. */
struct Map {
  long n, h, w, filters, window_h, window_w, degree, uniform; /* the order in which Python passes them */
  const float *numbers;
  const void *responses; /* of Kappa::Response */
  const float *squares;
  long rows, columns, window, outputs, padded;
  float share; /* of a position in the average over its window */

  Map(const long *shape, const float *numbers, const void *responses, const float *squares)
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
  Norms(const Map &map, long first, long count, float *buffer, bool cancel)
      : first(first), inverse(buffer), scale(buffer + count), lower(buffer + 2 * count) {
    const float *__restrict squares = map.squares + first;
    float *__restrict inverse = this->inverse, *__restrict scale = this->scale, *__restrict lower = this->lower;
    const float share = map.share;
    if (cancel) {
      for (long i = 0; i < count; i++) inverse[i] = 1, scale[i] = lower[i] = share;
      return;
    }
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

/* kappa(r / n) n^degree of a position, added to `values`, or as their first term. */
template <class Kappa>
INLINE void add_values(const Map &map, const long filters, const Norms &norms, long position, bool is_first,
                       float *__restrict values) {
  const auto *__restrict responses = (const typename Kappa::Response *)map.responses + position * filters;
  const float *__restrict numbers = map.numbers;
  const float inverse = norms.inverse[position - norms.first], scale = norms.scale[position - norms.first];
  SIMD for (long c = 0; c < filters; c++) {
    float value, slope;
    Kappa::at(Kappa::cosine(wide(responses[c]) * inverse), numbers, value, slope);
    values[c] = (is_first ? 0 : values[c]) + scale * value;
  }
}

/* The same, and the gradients of responses and squared norm (if asked) from that of the values, g. The gradients of responses may
take the place of the responses. */
template <class Kappa>
INLINE void add_gradients(const Map &map, const long filters, const Norms &norms, long position, bool is_first,
                          float *__restrict values, const float *__restrict g, void *of_responses, float *__restrict of_squares) {
  const auto *responses = (const typename Kappa::Response *)map.responses + position * filters;
  auto *to = (typename Kappa::Response *)of_responses + position * filters;
  const float *__restrict numbers = map.numbers;
  const float inverse = norms.inverse[position - norms.first], scale = norms.scale[position - norms.first];
  const float lower = norms.lower[position - norms.first], degree = map.degree;
  float sum = 0;
  SUM for (long c = 0; c < filters; c++) {
    float value, slope, t = Kappa::cosine(wide(responses[c]) * inverse);
    Kappa::at(t, numbers, value, slope);
    values[c] = (is_first ? 0 : values[c]) + scale * value;
    put(g[c] * lower * slope, to[c]);
    sum += g[c] * (degree * value - t * slope);
  }
  if (of_squares) of_squares[position] = 0.5f * lower * inverse * sum;
}

/* Outputs that follow each other, averages over windows, in rows that are `step` apart; and gradients, if asked, from those of
the values, whose rows have no gaps. */
template <class Kappa, bool gradients>
INLINE void pooled(const Map &map, const long filters, const long window_h, const long window_w, const Norms &norms, Walk &walk,
                   long count, float *values, const float *g, long step, void *of_responses, float *of_squares) {
  for (long i = 0; i < count; i++, walk.next(), values += step, g += gradients ? filters : 0)
    for (long a = 0; a < window_h; a++)
      for (long b = 0; b < window_w; b++) {
        const long position = walk.position + a * map.w + b;
        const bool is_first = a + b == 0;
        if (gradients) add_gradients<Kappa>(map, filters, norms, position, is_first, values, g, of_responses, of_squares);
        else add_values<Kappa>(map, filters, norms, position, is_first, values);
      }
}

/* The same, with loops of a fixed length for the usual small numbers of filters, and for no pooling. */
template <class Kappa, bool gradients>
static void pooled(const Map &map, const Norms &norms, Walk &walk, long count, float *values, const float *g, long step,
                   void *of_responses, float *of_squares) {
  const auto with_filters = [&](const long filters) __attribute__((always_inline)) {
    if (map.window == 1) pooled<Kappa, gradients>(map, filters, 1, 1, norms, walk, count, values, g, step, of_responses, of_squares);
    else
      pooled<Kappa, gradients>(map, filters, map.window_h, map.window_w, norms, walk, count, values, g, step, of_responses,
                               of_squares);
  };
  switch (map.filters) {
    case 8: return with_filters(8);
    case 16: return with_filters(16);
    case 32: return with_filters(32);
    default: return with_filters(map.filters);
  }
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

/* A, or its transpose, packed as filters of one position; without a root, nothing is multiplied. */
struct Root {
  const float *given;
  bool matrix;
  long filters, *offsets;
  float *packed;

  Root(const Map &map, const float *root, bool transposed)
      : given(root), matrix(root && !map.uniform), filters(map.filters), offsets(nullptr), packed(nullptr) {
    if (!matrix) return;
    offsets = (long *)malloc(filters * sizeof(long));
    packed = (float *)calloc(filters * map.padded, sizeof(float));
    if (failed()) return;
    for (long i = 0; i < filters; i++) offsets[i] = i;
    pack_all(packed, filters, 1, filters,
             [&](long i, long, long j) { return transposed ? root[j * filters + i] : root[i * filters + j]; });
  }
  ~Root() { free(offsets), free(packed); }
  bool failed() const { return matrix && !(offsets && packed); }
  void times(const float *values, float *out, long count) const {
    if (matrix) Rows{values, 0, filters, filters, offsets, packed, out, filters, 1, count}.respond();
    else Uniform(given, filters).times(values, out, count, filters);
  }
};

/* Outputs that follow each other, A values, or the values themselves without a root; the buffer has room for TILE of them. */
template <class Kappa>
static void outputs_of(const Map &map, const Root &root, const Norms &norms, Walk &walk, long count, float *out, float *buffer) {
  for (; count > 0; count -= TILE, out += TILE * map.filters) {
    const long tile = least(TILE, count);
    pooled<Kappa, false>(map, norms, walk, tile, root.given ? buffer : out, nullptr, map.filters, nullptr, nullptr);
    if (root.given) root.times(buffer, out, tile);
  }
}

/* Outputs at a time in the backward pass. */
static long tile_of(const Map &map) { return map.filters > WIDEST && !map.uniform ? 1 : TILE; }

/* The gradients of responses and squares, from that of outputs that follow each other, and that of the root, which is added to
`sums` (filters, padded); the latter two if asked. The buffer is zero, and has room for 2 tile_of(map) padded numbers. */
template <class Kappa>
static void gradients_of(const Map &map, const Root &root, const Norms &norms, Walk &walk, long count, const float *of_out,
                         void *of_responses, float *of_squares, float *sums, float *buffer) {
  const long filters = map.filters, padded = map.padded, tiles = tile_of(map);
  float *values = buffer, *of_values = values + tiles * padded;
  for (; count > 0; count -= tiles, of_out += tiles * filters) {
    const long tile = least(tiles, count);
    if (root.given) root.times(of_out, of_values, tile);
    pooled<Kappa, true>(map, norms, walk, tile, values, root.given ? of_values : of_out, padded, of_responses, of_squares);
    if (sums && root.matrix) Correlation{of_out, 0, filters, filters, root.offsets, values, sums, padded, 1, tile}.add();
  }
}

/* Positions that no window contains have no gradient. Those inside windows are not cleared: they may still hold responses. */
template <class Response> static void clear_outside(const Map &map, Response *of_responses, float *of_squares) {
  const long inside = map.columns * map.window_w;
  for (long line = 0; line < map.n * map.h; line++) {
    const long first = line % map.h < map.rows * map.window_h ? inside : 0, begin = line * map.w + first, count = map.w - first;
    if (of_responses) memset(of_responses + begin * map.filters, 0, count * map.filters * sizeof(Response));
    if (of_squares) memset(of_squares + begin, 0, count * sizeof(float));
  }
}

/* Add the sums of some parts to the gradient of the root (f, f). */
static void add_up(const Map &map, const float *sums, long parts, double *of_root) {
  const long filters = map.filters, padded = map.padded;
  for (long part = 0; part < parts; part++)
    for (long i = 0; i < filters; i++) add(sums + (part * filters + i) * padded, of_root + i * filters, filters);
}

#define EACH_KERNEL(function, ...)                           \
  switch (kind) {                                            \
    case 0: return function<Rbf>(__VA_ARGS__);               \
    case 1: return function<ArcCosine1>(__VA_ARGS__);        \
    case 2: return function<ArcCosine2>(__VA_ARGS__);        \
    case 3: return function<Linear>(__VA_ARGS__);            \
    default: return UNKNOWN_KERNEL;                          \
  }

/* The same, also with rounded responses: their kinds come after the others. */
#define EACH_KERNEL_AND_RESPONSE(function, ...)              \
  switch (kind) {                                            \
    case 4: return function<Rounded<Rbf>>(__VA_ARGS__);        \
    case 5: return function<Rounded<ArcCosine1>>(__VA_ARGS__); \
    case 6: return function<Rounded<ArcCosine2>>(__VA_ARGS__); \
    case 7: return function<Rounded<Linear>>(__VA_ARGS__);     \
    default: EACH_KERNEL(function, __VA_ARGS__)                \
  }
