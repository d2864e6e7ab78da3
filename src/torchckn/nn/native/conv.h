/* Convolutions with few filters, W E, in float32, row by row: channels last, any stride, padding and dilation.

Libraries are made for many channels. With 8 or 16 filters, a loop over patches that keeps its sums in registers is two to eight
times faster. */

#pragma once

#include "common.h"

/* Sums that are kept in registers: of so many positions, or numbers of a patch, at most, times one or two vectors of filters. Two
vectors halve the numbers that are read per product, but AVX2 has 16 registers only. */
#define MOST 12
#define MOST_OF_TAPS 9
#define MOST_OF_TWO (HAS_WIDE ? 12 : 6)
#define TWO ((HAS_WIDE ? 4 : 2) * LANES) /* filters of two vectors */

/* Call `act` with a constant number, `count`, which is at most `most`. */
template <int most, class Act> INLINE void with_constant(long count, const Act &act) {
  if constexpr (most > 1)
    if (count < most) return with_constant<most - 1>(count, act);
  act(std::integral_constant<int, most>{});
}

/* Cut `count` into pieces of at most `most`, as equal as can be, and call `act` with the first of each and their constant number. */
template <int most, class Act> INLINE void in_pieces(long count, const Act &act) {
  const long pieces = (count + most - 1) / most;
  for (long piece = 0, first = 0, end; piece < pieces; piece++, first = end) {
    end = count * (piece + 1) / pieces;
    with_constant<most>(end - first, [&](auto number) { act(first, number); });
  }
}

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

/* Where the numbers of a patch are, from its first one: (kernel_h, kernel_w, channels). */
static long *offsets_of(const Patches &p, const Frame &frame, long &taps) {
  taps = p.kernel_h * p.kernel_w * p.channels;
  long *offsets = (long *)malloc(taps * sizeof(long)), t = 0;
  for (long a = 0; offsets && a < p.kernel_h; a++)
    for (long b = 0; b < p.kernel_w; b++)
      for (long c = 0; c < p.channels; c++)
        offsets[t++] = (a * p.dilation_h * frame.full_w + b * p.dilation_w) * p.channels + c;
  return offsets;
}

/* Filters are in blocks, as many as fit into registers; their weights are (taps, width) block by block, with zeros at the end. */
struct Block {
  long first, width;

  Block(long f, long filters) {
    const long twos = filters / TWO * TWO, wide = HAS_WIDE ? filters / (2 * LANES) * 2 * LANES : 0;
    width = f < twos ? TWO : f < wide ? 2 * LANES : LANES;
    first = f / width * width;
  }
};

static long padded_up(long filters) { return (filters + LANES - 1) / LANES * LANES; }

/* Put weight(f, k, c) of each filter f and of each number (k, c) of a patch, (size, channels), into `packed`, which is zero before. */
template <class Weight> static void pack_all(float *packed, long filters, long size, long channels, const Weight &weight) {
  for (long f = 0; f < filters; f++) {
    const Block block(f, filters);
    float *to = packed + block.first * size * channels + f - block.first;
    for (long k = 0; k < size; k++)
      for (long c = 0; c < channels; c++, to += block.width) *to = weight(f, k, c);
  }
}

/* Rows of positions that are `step` apart, and their responses to packed filters: (rows, columns, filters) */
struct Rows {
  const float *x;
  long row, step, taps;
  const long *offsets;
  const float *packed;
  float *out;
  long filters, rows, columns;

  const float *position(long i) const { return x + i / columns * row + i % columns * step; }

  /* Some positions of one row, from which offsets count, */
  struct Neighbors {
    const float *first;
    long step;

    Neighbors(const Rows &rows, long first) : first(rows.position(first)), step(rows.step) {}
    float at(int i, long offset) const { return (first + offset)[i * step]; }
  };

  /* or of any, each with a pointer of its own: as few as there are registers for. */
  template <int count> struct Pointers {
    const float *from[count];

    Pointers(const Rows &rows, long first) {
      const long columns = rows.columns, wrap = rows.row - columns * rows.step;
      const float *at = rows.position(first);
      long left = columns - first % columns;
      UNROLL for (int i = 0; i < count; i++) {
        from[i] = at;
        at += rows.step;
        if (--left == 0) at += wrap, left = columns;
      }
    }
    float at(int i, long offset) const { return from[i][offset]; }
  };

  /* Some positions from the first on, and the filters from f on, of which `width` are wanted. */
  template <class V, int count, int vectors, class Positions> APART void respond(long first, long f, long width) const {
    const Positions positions(*this, first);
    V sums[count][vectors];
    UNROLL for (int i = 0; i < count; i++)
      UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = V{};
    const float *weights = packed + f * taps;
    for (long t = 0; t < taps; t++, weights += vectors * lanes<V>) {
      V weight[vectors];
      UNROLL for (int v = 0; v < vectors; v++) weight[v] = load<V>(weights + v * lanes<V>);
      const long offset = offsets[t];
      UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = sums[i][v] + positions.at(i, offset) * weight[v];
    }
    float *to = out + first * filters + f;
    UNROLL for (int i = 0; i < count; i++) {
      if (width == vectors * lanes<V>)
        UNROLL for (int v = 0; v < vectors; v++) store(to + i * filters + v * lanes<V>, sums[i][v]);
      else memcpy(to + i * filters, sums[i], width * sizeof(float));
    }
  }

  /* All positions, and filters from f to `end`, as far as there are blocks of them, or a last part of one; where the next one would
  begin. All positions use the weights of a block while they are in the cache. */
  template <class V, int vectors, int most> long respond_all(long f, long end) const {
    const long block = vectors * lanes<V>;
    for (; f < end && (block == LANES || f + block <= end); f += block) {
      const long width = least(block, end - f);
      if constexpr (most <= 6)
        in_pieces<most>(rows * columns, [&](long first, auto count) {
          respond<V, count, vectors, Pointers<count>>(first, f, width);
        });
      else
        for (long y = 0; y < rows; y++)
          in_pieces<most>(columns, [&](long i, auto count) {
            respond<V, count, vectors, Neighbors>(y * columns + i, f, width);
          });
    }
    return f;
  }

  void respond() const { respond(0, filters); }
  /* Only to some filters; the first is a multiple of TWO, and so is the end, if it is not that of all. */
  void respond(long f, long end) const {
    if (HAS_WIDE) {
      f = respond_all<Wide, 2, MOST_OF_TWO>(f, end);
      f = respond_all<Wide, 1, MOST>(f, end);
    } else f = respond_all<Vec, 2, MOST_OF_TWO>(f, end);
    respond_all<Vec, 1, MOST>(f, end);
  }
};

static Frame frame_of(const Patches &p) {
  return {p.h, p.w, p.channels, p.padding_h, p.padding_w, 1, 1, p.h + 2 * p.padding_h, p.w + 2 * p.padding_w};
}

/* Rows of positions, whose numbers at each of `taps` are multiplied by g (rows, columns, filters), and added to sums (taps, filters).
The number of filters is a multiple of LANES. */
struct Correlation {
  const float *x;
  long row, step, taps;
  const long *offsets;
  const float *g;
  float *sums;
  long filters, rows, columns;

  /* Some taps, and the filters from f on. */
  template <class V, int count, int vectors> APART void add_some(long first, long f) const {
    float *to = this->sums + first * filters + f;
    V sums[count][vectors];
    UNROLL for (int t = 0; t < count; t++)
      UNROLL for (int v = 0; v < vectors; v++) sums[t][v] = load<V>(to + t * filters + v * lanes<V>);
    const float *from = g + f;
    for (long y = 0; y < rows; y++)
      for (long i = 0; i < columns; i++, from += filters) {
        V factors[vectors];
        UNROLL for (int v = 0; v < vectors; v++) factors[v] = load<V>(from + v * lanes<V>);
        const float *at = x + y * row + i * step;
        UNROLL for (int t = 0; t < count; t++)
          UNROLL for (int v = 0; v < vectors; v++) sums[t][v] = sums[t][v] + at[offsets[first + t]] * factors[v];
      }
    UNROLL for (int t = 0; t < count; t++)
      UNROLL for (int v = 0; v < vectors; v++) store(to + t * filters + v * lanes<V>, sums[t][v]);
  }

  /* All taps, and filters from f on, as far as there are blocks of them; where the next one would begin. */
  template <class V, int vectors, int most> long add_all(long f) const {
    for (; f + vectors * lanes<V> <= filters; f += vectors * lanes<V>)
      in_pieces<most>(taps, [&](long first, auto count) { add_some<V, count, vectors>(first, f); });
    return f;
  }

  void add() const {
    long f = 0;
    if (HAS_WIDE) {
      f = add_all<Wide, 2, MOST_OF_TAPS>(f);
      f = add_all<Wide, 1, MOST_OF_TAPS>(f);
    } else f = add_all<Vec, 2, MOST_OF_TWO>(f);
    add_all<Vec, 1, MOST_OF_TAPS>(f);
  }
};
