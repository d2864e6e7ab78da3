/* The gradient of images through a convolution with few filters. */

#include "conv.h"

static Status convolve(const Patches &p, const Frame &frame, const float *x, const float *weights, float *out, long filters,
                       int threads) {
  const long parts = least(p.n, PARTS), row = p.stride_h * frame.full_w * p.channels;
  long taps, *offsets = offsets_of(p, frame, taps);
  std::atomic<bool> failed{!offsets};
  PARALLEL for (long part = 0; part < parts; part++) {
    float *buffer = frame.same() || failed ? nullptr : (float *)calloc(frame.size(), sizeof(float));
    if (failed || !(frame.same() || buffer)) {
      failed = true;
      continue;
    }
    for (long i = p.n * part / parts; i < p.n * (part + 1) / parts; i++) {
      const float *image = frame.of(x + i * p.h * p.w * p.channels, buffer);
      float *to = out + i * p.rows * p.columns * filters;
      Rows{image, row, p.stride_w * p.channels, taps, offsets, weights, to, filters, p.rows, p.columns}.respond();
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
  pack_all(weights, p.channels, size, filters,
           [&](long c, long k, long f) { return filter[(f * p.channels + c) * size + size - 1 - k]; });
  const Frame frame = {p.rows, p.columns, filters, span_h - p.padding_h, span_w - p.padding_w, p.stride_h, p.stride_w,
                       p.h + span_h, p.w + span_w};
  Patches reversed = p;
  reversed.h = p.rows, reversed.w = p.columns, reversed.rows = p.h, reversed.columns = p.w;
  reversed.channels = filters, reversed.stride_h = reversed.stride_w = 1;
  const Status status = convolve(reversed, frame, of_responses, weights, of_x, p.channels, threads);
  free(weights);
  return status;
}

extern "C" int wide_registers() {
#if defined(__AVX2__) && defined(__FMA__)
  return true;
#else
  return false;
#endif
}
