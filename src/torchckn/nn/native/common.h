/* What layer.cpp and conv.cpp share. */

#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")
#define UNROLL _Pragma("GCC unroll 12")
#define SUM _Pragma("omp simd reduction(+ : sum)")
#define PARALLEL _Pragma("omp parallel for num_threads(threads) schedule(static)")
#define PARTS 32
#define LANES 8 /* channels are padded to a multiple of this */

enum Status { DONE, OUT_OF_MEMORY, UNKNOWN_KERNEL, TOO_WIDE };

static inline long least(long a, long b) { return a < b ? a : b; }

/* Some numbers in a register. */
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE Vec load(const float *from) { return *(const Vec *)from; }
INLINE void store(float *to, Vec value) { *(Vec *)to = value; }
INLINE Vec spread(float x) { return Vec{x, x, x, x, x, x, x, x}; }

INLINE void add(const float *__restrict from, float *__restrict to, long n) {
  SIMD for (long i = 0; i < n; i++) to[i] += from[i];
}

/* The patches of a convolution, in the order in which Python passes their numbers. */
struct Patches {
  long n, h, w, channels, rows, columns, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  /* each pixel is a patch */
  bool single() const { return kernel_h * kernel_w * stride_h * stride_w == 1 && padding_h == 0 && padding_w == 0; }
  long row(long y, long a) const { return y * stride_h - padding_h + a * dilation_h; }
  bool inside(long row) const { return row >= 0 && row < h; }
};
