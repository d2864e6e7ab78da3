/* What layer.h and conv.h share. */

#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define INLINE static inline __attribute__((always_inline))
#define APART __attribute__((noinline)) /* a loop that needs all registers for itself */
#define SIMD _Pragma("omp simd")
#define UNROLL _Pragma("GCC unroll 12")
#define SUM _Pragma("omp simd reduction(+ : sum)")
#define PARALLEL _Pragma("omp parallel for num_threads(threads) schedule(static)")
#define PARTS 32
#define UNIT 4 /* images whose sum is in single precision: UNITS in torchckn/fit/chunks.py */
#define LANES 8 /* channels are padded to a multiple of this */

enum Status { DONE, OUT_OF_MEMORY, UNKNOWN_KERNEL, TOO_WIDE };

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a > b ? a : b; }

/* Some numbers in a register; twice as many where registers have room for them (AVX-512, which has twice as many registers, too). */
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float Wide __attribute__((vector_size(8 * LANES)));
#ifdef __AVX512F__
#define HAS_WIDE true
#else
#define HAS_WIDE false
#endif

template <class V> constexpr long lanes = sizeof(V) / sizeof(float);
template <class V> INLINE void store(float *to, V value) { memcpy(to, &value, sizeof(V)); }
template <class V> INLINE V load(const float *from) {
  V value;
  memcpy(&value, from, sizeof(V));
  return value;
}

/* The sum of all numbers of a vector, halves first: compilers would add one after the other. */
INLINE float total(Vec value) {
  typedef float Half __attribute__((vector_size(2 * LANES)));
  Half low, high;
  memcpy(&low, &value, sizeof(Half));
  memcpy(&high, (const char *)&value + sizeof(Half), sizeof(Half));
  low = low + high;
  return (low[0] + low[2]) + (low[1] + low[3]);
}

static inline long parts_of(long images) { return (images + UNIT - 1) / UNIT; }

template <class Number> INLINE void add(const float *__restrict from, Number *__restrict to, long n) {
  SIMD for (long i = 0; i < n; i++) to[i] += from[i];
}

/* The patches of a convolution, in the order in which Python passes their numbers. */
struct Patches {
  long n, h, w, channels, rows, columns, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  /* each pixel is a patch */
  bool single() const { return kernel_h * kernel_w * stride_h * stride_w == 1 && padding_h == 0 && padding_w == 0; }
  long row(long y, long a) const { return y * stride_h - padding_h + a * dilation_h; }
  long line() const { return w + 2 * padding_w; } /* a row of pixels with its padding */
  bool inside(long row) const { return row >= 0 && row < h; }
};
