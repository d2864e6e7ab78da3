/* The layer with its convolution, row by row, where conv.h is faster than a library: for few channels and filters.

Responses are used while they are still in the cache. Without a gradient they are never written to memory, and neither are their
gradients where images need none. */

#include "layer.h"

#define GROUP 128 /* positions */

/* The numbers of packed filters, (filters, channels, kernel_h, kernel_w) as there are. */
extern "C" long packed_size(const long *shape, long filters) {
  const Patches &p = *(const Patches *)shape;
  return padded_up(filters) * p.channels * p.kernel_h * p.kernel_w;
}

/* Filters as `convolve` takes them, in `packed`, which is zero before. */
extern "C" int pack(const long *shape, const float *filter, float *packed, long filters, int) {
  const Patches &p = *(const Patches *)shape;
  const long size = p.kernel_h * p.kernel_w;
  pack_all(packed, filters, size, p.channels, [&](long f, long k, long c) { return filter[(f * p.channels + c) * size + k]; });
  return DONE;
}

/* Rows of outputs that are computed together, of one image: enough positions for sums over them, few enough for the cache. */
struct Groups {
  long rows, of_image, count, positions;

  Groups(const Map &map) {
    rows = least(map.rows, most(1, GROUP / (map.window_h * map.w)));
    of_image = (map.rows + rows - 1) / rows;
    count = map.n * of_image;
    positions = rows * map.window_h * map.w;
  }
};

/* One of them, and the part of an image that it sees. */
struct Group {
  long image, first, rows, position; /* the first row of outputs, and the first position */

  Group(const Map &map, const Groups &groups, long index) : image(index / groups.of_image) {
    first = index % groups.of_image * groups.rows;
    rows = least(groups.rows, map.rows - first);
    position = (image * map.h + first * map.window_h) * map.w;
  }
  const float *patches(const Map &map, const Patches &p, const Frame &frame, const float *image) const {
    return image + first * map.window_h * p.stride_h * frame.full_w * p.channels;
  }
  long output(const Map &map) const { return (image * map.rows + first) * map.columns; }
};

/* The layer, and the squared norms of its patches on the way, unless they cancel. */
template <class Kappa>
static Status forward(const Map &map, const Patches &p, const float *x, const float *packed, const float *given, float *pixels,
                      float *squares, float *responses, float *out, int threads) {
  const Frame frame = frame_of(p);
  const Groups groups(map);
  const Root root(map, given, false);
  const long filters = map.filters, row = p.stride_h * frame.full_w * p.channels, framed = frame.same() ? 0 : frame.size();
  const long parts = least(p.n, PARTS), of_group = groups.positions * filters;
  const long room = framed + p.line() + 3 * groups.positions + TILE * filters + (responses ? 0 : of_group);
  long taps, *offsets = offsets_of(p, frame, taps);
  std::atomic<bool> failed{!offsets || root.failed()};
  PARALLEL for (long part = 0; part < parts; part++) {
    float *buffer = failed ? nullptr : (float *)calloc(room, sizeof(float));
    if (!buffer) {
      failed = true;
      continue;
    }
    float *line = buffer + framed, *of_norms = line + p.line(), *tiles = of_norms + 3 * groups.positions;
    float *own = tiles + TILE * filters;
    for (long i = p.n * part / parts; i < p.n * (part + 1) / parts; i++) {
      const float *image = x + i * p.h * p.w * p.channels;
      if (!Kappa::norms_cancel) image_squares(p, image, pixels + i * p.h * p.w, squares + i * p.rows * p.columns, line);
      image = frame.of(image, buffer);
      for (long index = i * groups.of_image; index < (i + 1) * groups.of_image; index++) {
        const Group group(map, groups, index);
        const float *from = group.patches(map, p, frame, image);
        float *to = responses ? responses + group.position * filters : own;
        Rows{from, row, p.stride_w * p.channels, taps, offsets, packed, to, filters, group.rows * map.window_h, map.w}.respond();
        const Map here = map.some_rows(group.rows, group.position, to);
        const Norms norms(here, 0, here.h * here.w, of_norms, Kappa::norms_cancel);
        Walk walk(here, 0);
        outputs_of<Kappa>(here, root, norms, walk, here.outputs, out + group.output(map) * filters, tiles);
      }
    }
    free(buffer);
  }
  free(offsets);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* The gradients of the filters, and of responses, squares and root if asked. Responses that are not given are computed again. */
template <class Kappa>
static Status backward(const Map &map, const Patches &p, const float *x, const float *packed, const float *given,
                       const float *of_out, float *of_responses, float *of_squares, double *of_root, double *of_filter,
                       int threads) {
  const Frame frame = frame_of(p);
  const Groups groups(map);
  const Root root(map, given, true);
  const long filters = map.filters, padded = map.padded, size = p.kernel_h * p.kernel_w;
  const long parts = parts_of(map.n), row = p.stride_h * frame.full_w * p.channels, framed = frame.same() ? 0 : frame.size();
  const long of_group = groups.positions * filters, tiles = 2 * tile_of(map) * padded;
  const long room = framed + 3 * groups.positions + tiles + (of_responses ? 0 : of_group) + (map.responses ? 0 : of_group);
  long taps, *offsets = offsets_of(p, frame, taps);
  const long length = taps * filters;
  float *sums = of_root ? (float *)malloc(PARTS * filters * padded * sizeof(float)) : nullptr;
  float *of_filters = (float *)malloc(PARTS * length * sizeof(float));
  clear_outside(map, of_responses, of_squares);
  if (of_root) memset(of_root, 0, filters * filters * sizeof(double));
  memset(of_filter, 0, taps * filters * sizeof(double));
  std::atomic<bool> failed{!offsets || !of_filters || root.failed() || (of_root && !sums)};
  for (long first = 0; first < parts && !failed; first += PARTS) { /* some parts at a time, whose sums fit into memory */
    const long count = least(PARTS, parts - first);
    if (sums) memset(sums, 0, count * filters * padded * sizeof(float));
    memset(of_filters, 0, count * length * sizeof(float));
    PARALLEL for (long part = first; part < first + count; part++) {
      float *buffer = failed ? nullptr : (float *)calloc(room, sizeof(float));
      if (!buffer) {
        failed = true;
        continue;
      }
      float *of_norms = buffer + framed, *of_tiles = of_norms + 3 * groups.positions, *own = of_tiles + tiles;
      float *recomputed = own + (of_responses ? 0 : of_group);
      const float *image = nullptr;
      const long end = least(map.n, (part + 1) * UNIT) * groups.of_image;
      for (long index = part * UNIT * groups.of_image, last = -1; index < end; index++) {
        const Group group(map, groups, index);
        if (group.image != last) image = frame.of(x + group.image * p.h * p.w * p.channels, buffer);
        last = group.image;
        const float *from = group.patches(map, p, frame, image);
        if (!map.responses)
          Rows{from, row, p.stride_w * p.channels, taps, offsets, packed, recomputed, filters, group.rows * map.window_h, map.w}
              .respond();
        const float *responses = map.responses ? (const float *)map.responses + group.position * filters : recomputed;
        const Map here = map.some_rows(group.rows, group.position, responses);
        const Norms norms(here, 0, here.h * here.w, of_norms, Kappa::norms_cancel);
        Walk walk(here, 0);
        float *to = of_responses ? of_responses + group.position * filters : own; /* `own` stays zero outside of windows */
        gradients_of<Kappa>(here, root, norms, walk, here.outputs, of_out + group.output(map) * filters, to,
                            of_squares ? of_squares + group.position : nullptr,
                            sums ? sums + (part - first) * filters * padded : nullptr, of_tiles);
        Correlation{from, row, p.stride_w * p.channels, taps, offsets, to, of_filters + (part - first) * length, filters, here.h,
                    here.w}
            .add();
      }
      free(buffer);
    }
    if (failed) break;
    if (of_root) add_up(map, sums, count, of_root);
    PARALLEL for (long tap = 0; tap < taps; tap++) /* a number of a patch, (k, c), for all filters */
      for (long f = 0; f < filters; f += LANES) {
        double *to = of_filter + (f * p.channels + tap % p.channels) * size + tap / p.channels, some[LANES] = {};
        for (long part = 0; part < count; part++) add(of_filters + part * length + tap * filters + f, some, LANES);
        for (long i = 0; i < LANES; i++) to[i * p.channels * size] += some[i];
      }
  }
  free(offsets);
  free(sums);
  free(of_filters);
  return failed ? OUT_OF_MEMORY : DONE;
}

/* Filters (filters, channels, kernel_h, kernel_w), packed; to be freed. */
static float *packed_copy(const long *patches, const float *filter, long filters) {
  float *packed = (float *)calloc(packed_size(patches, filters), sizeof(float));
  if (packed) pack(patches, filter, packed, filters, 1);
  return packed;
}

static Status forward_of_packed(int kind, const Map &map, const Patches &p, const float *x, const float *packed, const float *root,
                                float *pixels, float *squares, float *responses, float *out, int threads) {
  EACH_KERNEL(forward, map, p, x, packed, root, pixels, squares, responses, out, threads)
}

/* `squares` are written, and `responses` if there is room for them. `pixels` has room for (n, h, w); if each pixel is a patch, they
are the squares. */
extern "C" int direct_forward(int kind, const float *numbers, const long *shape, const long *patches, const float *x,
                              const float *filter, const float *root, float *pixels, float *squares, float *responses, float *out,
                              int threads) {
  const Map map(shape, numbers, responses, squares);
  float *packed = packed_copy(patches, filter, map.filters);
  if (!packed) return OUT_OF_MEMORY;
  const int status = forward_of_packed(kind, map, *(const Patches *)patches, x, packed, root, pixels, squares, responses, out,
                                       threads);
  free(packed);
  return status;
}

static Status backward_of_packed(int kind, const Map &map, const Patches &p, const float *x, const float *packed, const float *root,
                                 const float *of_out, float *of_responses, float *of_squares, double *of_root, double *of_filter,
                                 int threads) {
  EACH_KERNEL(backward, map, p, x, packed, root, of_out, of_responses, of_squares, of_root, of_filter, threads)
}

/* The number of filters is a multiple of LANES. Responses may be missing. */
extern "C" int direct_backward(int kind, const float *numbers, const long *shape, const long *patches, const float *x,
                               const float *filter, const float *responses, const float *squares, const float *root,
                               const float *of_out, float *of_responses, float *of_squares, double *of_root, double *of_filter,
                               int threads) {
  const Map map(shape, numbers, responses, squares);
  if (root && !map.uniform && map.filters > WIDEST) return TOO_WIDE;
  float *packed = packed_copy(patches, filter, map.filters);
  if (!packed) return OUT_OF_MEMORY;
  const int status = backward_of_packed(kind, map, *(const Patches *)patches, x, packed, root, of_out, of_responses, of_squares,
                                        of_root, of_filter, threads);
  free(packed);
  return status;
}
