/* The layer with a pooling of weighted averages whose windows may overlap, as those of a Gaussian do: first along rows, then along
columns. A row of positions at a time, so that no map of values is ever in memory. The projection comes after it, outside. */

#include "layer.h"

/* The weights along each axis, in the order in which Python passes the numbers. */
struct Average {
  long taps, stride, padding, rows, columns; /* rows and columns of outputs */
  const float *weights;

  Average(const long *numbers, const float *weights)
      : taps(numbers[0]), stride(numbers[1]), padding(numbers[2]), rows(numbers[3]), columns(numbers[4]), weights(weights) {}
  /* Call `act` with each output along an axis, from `begin` on and before `end`, whose window contains position i, and its weight. */
  template <class Act> void each(long i, long begin, long end, const Act &act) const {
    const long last = least(end, (i + padding) / stride + 1);
    for (long o = most(begin, (i + padding - taps + stride) / stride); o < last; o++) act(o, weights[i + padding - o * stride]);
  }
};

INLINE void add_scaled(const float *__restrict from, float scale, float *__restrict to, long n) {
  SIMD for (long i = 0; i < n; i++) to[i] += scale * from[i];
}

/* Where there are few images, each is cut into bands of rows, so that all threads have work. Results do not depend on it. */
static long bands_of(const Map &map, long rows, int threads) { return most(1, least(rows, 4L * threads / map.n)); }

template <class Kappa>
static Status forward(const Map &map, const Average &average, float *out, int threads) {
  const long filters = map.filters, line = average.columns * filters, bands = bands_of(map, average.rows, threads);
  std::atomic<bool> failed{false};
  PARALLEL for (long part = 0; part < map.n * bands; part++) {
    const long i = part / bands, begin = average.rows * (part % bands) / bands, end = average.rows * (part % bands + 1) / bands;
    const long top = most(0, begin * average.stride - average.padding);
    const long bottom = least(map.h, (end - 1) * average.stride - average.padding + average.taps);
    const long first = (i * map.h + top) * map.w, positions = most(0, bottom - top) * map.w;
    float *buffer = (float *)malloc((3 * positions + line + filters) * sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    const Norms norms(map, first, positions, buffer, Kappa::norms_cancel);
    float *row = buffer + 3 * positions, *values = row + line, *to = out + i * average.rows * line;
    memset(to + begin * line, 0, (end - begin) * line * sizeof(float));
    for (long y = top; y < bottom; y++) {
      memset(row, 0, line * sizeof(float));
      for (long x = 0; x < map.w; x++) {
        add_values<Kappa>(map, filters, norms, (i * map.h + y) * map.w + x, true, values);
        average.each(x, 0, average.columns, [&](long o, float weight) { add_scaled(values, weight, row + o * filters, filters); });
      }
      average.each(y, begin, end, [&](long o, float weight) { add_scaled(row, weight, to + o * line, line); });
    }
    free(buffer);
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradients of responses, whose place they may take, and squares (if asked), from that of out. */
template <class Kappa>
static Status backward(const Map &map, const Average &average, const float *of_out, void *of_responses, float *of_squares,
                       int threads) {
  const long filters = map.filters, line = average.columns * filters, bands = bands_of(map, map.h, threads);
  std::atomic<bool> failed{false};
  PARALLEL for (long part = 0; part < map.n * bands; part++) {
    const long i = part / bands, top = map.h * (part % bands) / bands, bottom = map.h * (part % bands + 1) / bands;
    const long first = (i * map.h + top) * map.w, positions = (bottom - top) * map.w;
    float *buffer = (float *)malloc((3 * positions + line + 2 * filters) * sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    const Norms norms(map, first, positions, buffer, Kappa::norms_cancel);
    float *row = buffer + 3 * positions, *of_values = row + line, *values = of_values + filters;
    const float *from = of_out + i * average.rows * line;
    for (long y = top; y < bottom; y++) {
      memset(row, 0, line * sizeof(float));
      average.each(y, 0, average.rows, [&](long o, float weight) { add_scaled(from + o * line, weight, row, line); });
      for (long x = 0; x < map.w; x++) {
        memset(of_values, 0, filters * sizeof(float));
        average.each(x, 0, average.columns, [&](long o, float weight) { add_scaled(row + o * filters, weight, of_values, filters); });
        const long position = (i * map.h + y) * map.w + x;
        add_gradients<Kappa>(map, filters, norms, position, true, values, of_values, of_responses, of_squares);
      }
    }
    free(buffer);
  }
  return failed ? OUT_OF_MEMORY : DONE;
}

extern "C" int weighted_forward(int kind, const float *numbers, const long *shape, const long *average, const float *weights,
                                const void *responses, const float *squares, float *out, int threads) {
  const Map map(shape, numbers, responses, squares);
  EACH_KERNEL_AND_RESPONSE(forward, map, Average(average, weights), out, threads)
}

extern "C" int weighted_backward(int kind, const float *numbers, const long *shape, const long *average, const float *weights,
                                 const void *responses, const float *squares, const float *of_out, void *of_responses,
                                 float *of_squares, int threads) {
  const Map map(shape, numbers, responses, squares);
  EACH_KERNEL_AND_RESPONSE(backward, map, Average(average, weights), of_out, of_responses, of_squares, threads)
}
