/* The gradient of images through a convolution with few filters. */

#include "conv.h"

static Status convolve(const Patches &p, const Frame &frame, const float *x, const float *weights, float *out, long filters,
                       int threads) {
  const long lines = p.n * p.rows;
  const long parts = p.n < FEW_IMAGES ? least(p.n * FEW_PARTS, lines) : PARTS;
  long taps, *offsets = offsets_of(p, frame, taps);
  std::atomic<bool> failed{!offsets};
  PARALLEL for (long part = 0; part < parts; part++) {
    float *buffer = frame.same() || failed ? nullptr : (float *)calloc(frame.size(), sizeof(float));
    if (failed || !(frame.same() || buffer)) {
      failed = true;
      continue;
    }
    const float *image = nullptr;
    for (long line = lines * part / parts, last = -1; line < lines * (part + 1) / parts; line++) {
      const long i = line / p.rows, y = line % p.rows;
      if (i != last) image = frame.of(x + i * p.h * p.w * p.channels, buffer);
      last = i;
      respond_row({image + y * p.stride_h * frame.full_w * p.channels, p.stride_w * p.channels, taps, offsets, weights,
                   out + line * p.columns * filters, filters},
                  p.columns);
    }
    free(buffer);
  }
  free(offsets);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradient of x from that of the responses: a convolution of the latter, spread out by the stride, with the patches reversed.
The padding is smaller than a patch. */
extern "C" int convolution_of_x(const long *shape, const float *of_responses, const float *filter, float *of_x, long filters,
                                int threads) {
  Patches p = *(const Patches *)shape;
  if (p.single()) p.w = p.columns = p.h * p.w, p.h = p.rows = 1; /* each image is one row of patches */
  const long size = p.kernel_h * p.kernel_w, taps = size * filters;
  const long span_h = p.dilation_h * (p.kernel_h - 1), span_w = p.dilation_w * (p.kernel_w - 1);
  float *weights = (float *)calloc(taps * padded_up(p.channels), sizeof(float)); /* its taps are (kernel_h, kernel_w, filters) */
  if (!weights) return OUT_OF_MEMORY;
  for (long c = 0; c < p.channels; c++) {
    const Block block(c, p.channels);
    float *to = weights + block.first * taps + c - block.first;
    for (long f = 0; f < filters; f++)
      for (long k = 0; k < size; k++) to[((size - 1 - k) * filters + f) * block.width] = filter[(f * p.channels + c) * size + k];
  }
  const Frame frame = {p.rows, p.columns, filters, span_h - p.padding_h, span_w - p.padding_w, p.stride_h, p.stride_w,
                       p.h + span_h, p.w + span_w};
  Patches reversed = p;
  reversed.h = p.rows, reversed.w = p.columns, reversed.rows = p.h, reversed.columns = p.w;
  reversed.channels = filters, reversed.stride_h = reversed.stride_w = 1;
  const Status status = convolve(reversed, frame, of_responses, weights, of_x, p.channels, threads);
  free(weights);
  return status;
}

extern "C" int wide_registers() { return HAS_WIDE; }
