/* Convolutions with few filters, W E, in float32, row by row: channels last, any stride, padding and dilation.

Libraries are made for many channels. With 8 or 16 filters, a loop over patches that keeps its sums in registers is two to eight
times faster. */

#pragma once

#include "common.h"

#define POSITIONS 12 /* sums that are kept in registers: of neighboring positions, at most, */
#define TAPS 9       /* or of numbers of a patch */
#define FEW_IMAGES 8 /* below, an image is shared by FEW_PARTS parts */
#define FEW_PARTS 4

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

/* Where the numbers of a patch are, from its first one: (kernel_h, kernel_w, channels). Filled up to a multiple of TAPS. */
static long *offsets_of(const Patches &p, const Frame &frame, long &taps) {
  taps = p.kernel_h * p.kernel_w * p.channels;
  long *offsets = (long *)calloc(taps + TAPS, sizeof(long)), t = 0;
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
    const long pairs = HAS_WIDE ? filters / (4 * LANES) * 4 * LANES : 0;
    const long wide = HAS_WIDE ? filters / (2 * LANES) * 2 * LANES : 0;
    width = f < pairs ? 4 * LANES : f < wide ? 2 * LANES : LANES;
    first = f / width * width;
  }
};

static long padded_up(long filters) { return (filters + LANES - 1) / LANES * LANES; }

/* A row of positions that are `step` apart. */
struct Row {
  const float *x;
  long step, taps;
  const long *offsets;
  const float *weights;
  float *out;
  long filters;

  /* Some positions from `first` on, and the filters from f on, of which `width` are wanted. */
  template <class V, int count, int vectors> void respond(long first, long f, long width) const {
    V sums[count][vectors];
    UNROLL for (int i = 0; i < count; i++)
      UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = V{};
    const float *from = x + first * step, *packed = weights + f * taps;
    for (long t = 0; t < taps; t++, packed += vectors * lanes<V>) {
      V weight[vectors];
      UNROLL for (int v = 0; v < vectors; v++) weight[v] = load<V>(packed + v * lanes<V>);
      const float *at = from + offsets[t];
      UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int v = 0; v < vectors; v++) sums[i][v] = sums[i][v] + at[i * step] * weight[v];
    }
    float *to = out + first * filters + f;
    UNROLL for (int i = 0; i < count; i++) {
      if (width == vectors * lanes<V>)
        UNROLL for (int v = 0; v < vectors; v++) store(to + i * filters + v * lanes<V>, sums[i][v]);
      else memcpy(to + i * filters, sums[i], width * sizeof(float));
    }
  }

  template <class V, int vectors> void respond(long first, long count, long f, long width) const {
    switch (count) {
      case 12: return respond<V, 12, vectors>(first, f, width);
      case 11: return respond<V, 11, vectors>(first, f, width);
      case 10: return respond<V, 10, vectors>(first, f, width);
      case 9: return respond<V, 9, vectors>(first, f, width);
      case 8: return respond<V, 8, vectors>(first, f, width);
      case 7: return respond<V, 7, vectors>(first, f, width);
      case 6: return respond<V, 6, vectors>(first, f, width);
      case 5: return respond<V, 5, vectors>(first, f, width);
      case 4: return respond<V, 4, vectors>(first, f, width);
      case 3: return respond<V, 3, vectors>(first, f, width);
      case 2: return respond<V, 2, vectors>(first, f, width);
      default: return respond<V, 1, vectors>(first, f, width);
    }
  }

  /* All positions of the row, and filters from f on, as far as there are blocks of them, or a last part of one; where the next one
  would begin. */
  template <class V, int vectors> long respond_all(long columns, long f) const {
    const long pieces = (columns + POSITIONS - 1) / POSITIONS, block = vectors * lanes<V>;
    for (; f < filters && (block == LANES || f + block <= filters); f += block)
      for (long piece = 0, first = 0, end; piece < pieces; piece++, first = end) {
        end = columns * (piece + 1) / pieces;
        respond<V, vectors>(first, end - first, f, least(block, filters - f));
      }
    return f;
  }
};

static void respond_row(const Row &row, long columns) {
  long f = 0;
  if (HAS_WIDE) {
    f = row.respond_all<Wide, 2>(columns, f);
    f = row.respond_all<Wide, 1>(columns, f);
  }
  row.respond_all<Vec, 1>(columns, f);
}

static Frame frame_of(const Patches &p) {
  return {p.h, p.w, p.channels, p.padding_h, p.padding_w, 1, 1, p.h + 2 * p.padding_h, p.w + 2 * p.padding_w};
}

/* sums (taps, filters) += x of each position times g, for TAPS taps and the filters from f on, as far as there are blocks of them;
where the next one would begin. */
template <class V, int vectors>
INLINE long correlate(const float *x, long row, long step, const long *offsets, const float *g, long filters, long rows,
                      long columns, float *to, long f) {
  for (; f + vectors * lanes<V> <= filters; f += vectors * lanes<V>) {
    V sums[TAPS][vectors];
    UNROLL for (int t = 0; t < TAPS; t++)
      UNROLL for (int v = 0; v < vectors; v++) sums[t][v] = load<V>(to + t * filters + f + v * lanes<V>);
    const float *from = g + f;
    for (long y = 0; y < rows; y++)
      for (long i = 0; i < columns; i++, from += filters) {
        V factors[vectors];
        UNROLL for (int v = 0; v < vectors; v++) factors[v] = load<V>(from + v * lanes<V>);
        const float *at = x + y * row + i * step;
        UNROLL for (int t = 0; t < TAPS; t++)
          UNROLL for (int v = 0; v < vectors; v++) sums[t][v] = sums[t][v] + at[offsets[t]] * factors[v];
      }
    UNROLL for (int t = 0; t < TAPS; t++)
      UNROLL for (int v = 0; v < vectors; v++) store(to + t * filters + f + v * lanes<V>, sums[t][v]);
  }
  return f;
}

/* The same for all filters, whose number is a multiple of LANES, and all taps; sums are (taps, filters), the taps filled up to a
multiple of TAPS. */
static void correlate_all(const float *x, long row, long step, const long *offsets, long taps, const float *g, long filters, long rows,
                          long columns, float *sums) {
  for (long t = 0; t < taps; t += TAPS, sums += TAPS * filters) {
    long f = 0;
    if (HAS_WIDE) {
      f = correlate<Wide, 2>(x, row, step, offsets + t, g, filters, rows, columns, sums, f);
      f = correlate<Wide, 1>(x, row, step, offsets + t, g, filters, rows, columns, sums, f);
    }
    correlate<Vec, 1>(x, row, step, offsets + t, g, filters, rows, columns, sums, f);
  }
}
