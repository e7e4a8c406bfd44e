#include "host/gemm.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "host/gemm_epilogue.hpp"

namespace muonrt::host {

namespace {

constexpr int64_t kAlignment = 64;
/// The number of elements that one iteration of a loop over rows copies.
constexpr int64_t kCopyElements = int64_t{1} << 16;
/// A packed panel of at most this size stays in the L2 cache, so the code may read it again for
/// every few rows.
constexpr int64_t kReadOften = int64_t{1} << 18;

}  // namespace

/// The grid of tiles for a shape, and the objects of the product library for this grid.
struct PreparedGemm {
  /// The division of one direction of the grid into tiles. It has `count` tiles of size `size`,
  /// except that the last tile has size `last`.
  struct Cut {
    int64_t size, count, last;
  } rows, cols;
  int64_t depth;
  std::unique_ptr<const PanelProduct> panel, last_panel;
  int64_t packed_bytes = 0;   // bytes of one packed panel, rounded up
  int64_t scratch_bytes = 0;  // bytes that one call needs, rounded up

  const PanelProduct& panel_of(int64_t col_tile) const {
    return col_tile + 1 == cols.count ? *last_panel : *panel;
  }
  int64_t tile_bytes() const { return round_up(rows.size * cols.size * 4, kAlignment); }
};

namespace {

/// Divides an extent into tiles of nearly equal size. If there are multiple tiles, the size of all
/// except the last is a multiple of 16. Small tiles waste less work on the diagonal of a symmetric
/// product, and let small products use more threads. With large tiles, the operands are read less
/// often.
PreparedGemm::Cut cut(int64_t extent, int64_t largest) {
  const int64_t size = std::min(extent, round_up(ceil_div(extent, ceil_div(extent, largest)), 16));
  const int64_t count = ceil_div(extent, size);
  return {size, count, extent - (count - 1) * size};
}

/// The form of the operands that the tiles read. A and B have the same dtype, and A is dense.
struct Operands {
  DType dtype;
  bool copy_a, copy_b;  // true if A or B is copied to dense storage of `dtype`
  bool share;           // true if A and B are the same matrix, so one copy is used for both
  int64_t b_ld;
};

Operands operands_of(const GemmArgs& args, const TileKernel& kernel) {
  const ConstMatrixRef &a = args.a, &b = args.b;
  Operands made;
  const bool narrow = a.dtype == DType::kBF16 && b.dtype == DType::kBF16;
  made.dtype = narrow && kernel.supports_bf16() ? DType::kBF16 : DType::kF32;
  made.copy_a = a.dtype != made.dtype || a.ld != a.cols;
  made.copy_b = b.dtype != made.dtype;
  made.share = made.copy_a && made.copy_b && a.data == b.data && a.rows == b.rows &&
               a.cols == b.cols && a.ld == b.ld && a.dtype == b.dtype;
  made.b_ld = made.copy_b ? b.cols : b.ld;
  return made;
}

int64_t dense_bytes(const ConstMatrixRef& m, DType dtype) {
  return round_up(checked_mul(checked_mul(m.rows, m.cols), size_of(dtype)), kAlignment);
}

/// The layout of the workspace. It contains the copy of A, the copy of B, a group of packed panels,
/// and then, for each thread, a tile and scratch memory for the library.
struct Workspace {
  int64_t a, b, packed, threads, bytes;  // offsets; `bytes` is the total size
  int64_t per_thread;
  int64_t group;  // number of panels that are packed at a time

  Workspace(const GemmArgs& args, const Operands& operands, const PreparedGemm& prepared,
            int thread_count, int64_t packed_bytes) {
    a = 0;
    b = operands.copy_a ? dense_bytes(args.a, operands.dtype) : 0;
    packed = b + (operands.copy_b && !operands.share ? dense_bytes(args.b, operands.dtype) : 0);
    // A group must have enough tiles to balance the load of the threads.
    const int64_t enough = ceil_div(int64_t{8} * thread_count, prepared.rows.count);
    group = std::max(enough, packed_bytes / std::max<int64_t>(prepared.packed_bytes, 1));
    group = std::clamp<int64_t>(group, 1, prepared.cols.count);
    threads = packed + checked_mul(group, prepared.packed_bytes);
    per_thread = prepared.tile_bytes() + prepared.scratch_bytes;
    // Adds kAlignment bytes, so the start of the workspace can be aligned.
    bytes = checked_add(threads, checked_mul(thread_count, per_thread)) + kAlignment;
  }
};

void check_matrix(const ConstMatrixRef& m, const char* name, int64_t rows, int64_t cols) {
  MUONRT_REQUIRE(m.rows == rows && m.cols == cols, Status::kInvalidArgument,
                 "matrix product: ", name, " is ", m.rows, " x ", m.cols, ", but must be ", rows,
                 " x ", cols);
  MUONRT_REQUIRE(m.ld >= m.cols, Status::kInvalidArgument, "matrix product: ", name, " has ld ",
                 m.ld, ", but must be at least its number of columns, ", m.cols);
  MUONRT_REQUIRE(m.dtype == DType::kF32 || m.dtype == DType::kBF16 || m.dtype == DType::kF16,
                 Status::kNotSupported, "matrix product: ", name, " has dtype ",
                 static_cast<int32_t>(m.dtype),
                 ", which is not supported on the host; convert the data to f32, bf16 or f16");
}

bool reads_d(const GemmArgs& args) { return args.d.data != nullptr && args.beta != 0.0f; }

void check(const GemmArgs& args) {
  const int64_t m = args.c.rows, n = args.c.cols, k = args.a.cols;
  MUONRT_REQUIRE(m >= 0 && n >= 0 && k >= 0, Status::kInvalidArgument,
                 "matrix product: the size is ", m, " x ", n, " x ", k,
                 ", but must not be negative");
  check_matrix(args.a, "A", m, k);
  check_matrix(args.b, "B", args.transpose_b ? n : k, args.transpose_b ? k : n);
  check_matrix(args.c, "C", m, n);
  if (reads_d(args)) check_matrix(args.d, "D", m, n);
  MUONRT_REQUIRE(!args.symmetric || m == n, Status::kInvalidArgument, "matrix product of ", m,
                 " x ", n, ": symmetric is set, but the result is not square");
}

/// Rejects an input that shares memory with C, because C is written before all inputs have been
/// read.
void check_overlap(const GemmArgs& args, const ConstMatrixRef& input, const char* name) {
  const auto span = [](const ConstMatrixRef& m) {
    const char* first = static_cast<const char*>(m.data);
    const int64_t elements = m.rows == 0 ? 0 : (m.rows - 1) * m.ld + m.cols;
    return std::pair(first, first + elements * size_of(m.dtype));
  };
  const auto c = span(args.c), other = span(input);
  MUONRT_REQUIRE(c.second <= other.first || other.second <= c.first, Status::kInvalidArgument,
                 "matrix product: C overlaps ", name, "; give C its own memory");
}

/// Computes and stores the tiles of a group of column panels.
class Group {
 public:
  Group(const GemmArgs& args, const PreparedGemm& prepared, int64_t first, int64_t end)
      : args_(args), prepared_(prepared), first_(first), end_(end) {}

  int64_t tiles() const {
    int64_t count = 0;
    for (int64_t col = first_; col < end_; ++col) count += column_tiles(col);
    return count;
  }

  /// Returns the tile with this index. The tiles of one column have consecutive indices, so the
  /// packed panel of the column stays in the cache.
  std::pair<int64_t, int64_t> tile(int64_t index) const {
    int64_t col = first_;
    for (; index >= column_tiles(col); ++col) index -= column_tiles(col);
    return {index, col};
  }

 private:
  int64_t column_tiles(int64_t col) const {
    return args_.symmetric ? col + 1 : prepared_.rows.count;
  }

  const GemmArgs& args_;
  const PreparedGemm& prepared_;
  int64_t first_, end_;
};

/// One call to gemm(): its memory, and its operands in the form that the tiles read.
class TiledProduct {
 public:
  TiledProduct(const GemmArgs& args, const Operands& operands, const PreparedGemm& prepared,
               const Workspace& workspace, char* memory, ThreadPool& pool)
      : args_(args),
        operands_(operands),
        prepared_(prepared),
        workspace_(workspace),
        memory_(memory),
        pool_(pool),
        a_(static_cast<const char*>(args.a.data)),
        b_(static_cast<const char*>(args.b.data)) {}

  void run() {
    if (operands_.copy_a) a_ = copy(args_.a, workspace_.a);
    if (operands_.copy_b) b_ = operands_.share ? a_ : copy(args_.b, workspace_.b);
    for (int64_t first = 0; first < prepared_.cols.count; first += workspace_.group) {
      const int64_t end = std::min(first + workspace_.group, prepared_.cols.count);
      if (prepared_.depth > 0) {
        pool_.parallel_for(end - first,
                           [&](int64_t i, int thread) { pack(first + i, packed(i), thread); });
      }
      const Group group(args_, prepared_, first, end);
      pool_.parallel_for(group.tiles(), [&](int64_t index, int thread) {
        const auto [row, col] = group.tile(index);
        multiply(row, col, packed(col - first), thread);
      });
    }
  }

 private:
  char* packed(int64_t chunk) const {
    return memory_ + workspace_.packed + chunk * prepared_.packed_bytes;
  }
  float* tile_of(int thread) const {
    return reinterpret_cast<float*>(memory_ + workspace_.threads + thread * workspace_.per_thread);
  }
  char* scratch_of(int thread) const {
    return reinterpret_cast<char*>(tile_of(thread)) + prepared_.tile_bytes();
  }

  const char* copy(const ConstMatrixRef& from, int64_t offset) const {
    void* dense = memory_ + offset;
    const int64_t rows = std::max<int64_t>(1, kCopyElements / std::max<int64_t>(from.cols, 1));
    pool_.parallel_for(ceil_div(from.rows, rows), [&](int64_t i, int) {
      copy_rows_dense(from, operands_.dtype, dense, i * rows, std::min((i + 1) * rows, from.rows));
    });
    return memory_ + offset;
  }

  void pack(int64_t col, void* to, int thread) const {
    const int64_t first = col * prepared_.cols.size;
    const int64_t element = args_.transpose_b ? first * operands_.b_ld : first;
    prepared_.panel_of(col).pack(b_ + element * size_of(operands_.dtype), to, scratch_of(thread));
  }

  void multiply(int64_t row, int64_t col, const void* panel, int thread) const {
    const auto &rows = prepared_.rows, &cols = prepared_.cols;
    const TilePosition position{.row = row * rows.size,
                                .col = col * cols.size,
                                .rows = row + 1 == rows.count ? rows.last : rows.size,
                                .cols = col + 1 == cols.count ? cols.last : cols.size};
    float* tile = tile_of(thread);
    if (prepared_.depth == 0) {
      std::fill(tile, tile + position.rows * position.cols, 0.0f);
      return store_tile(args_, position, tile);
    }
    const PanelProduct& product = prepared_.panel_of(col);
    const bool on_diagonal = args_.symmetric && row == col;
    // If only a few rows are computed at a time, they stay in the L1 cache until they are stored.
    // In a tile on the diagonal, the elements of these rows left of the diagonal need not be
    // computed.
    int64_t step = position.rows;
    if (product.any_rows() && product.packed_bytes() <= kReadOften) {
      step = kTileSide;
    } else if (product.any_rows() && on_diagonal) {
      step = 4 * kTileSide;
    }
    TilePosition part = position;
    for (int64_t first = 0; first < position.rows; first += part.rows) {
      part.row = position.row + first;
      part.rows = std::min(step, position.rows - first);
      const int64_t skip = part.row * prepared_.depth * size_of(operands_.dtype);
      product.run(part.rows, a_ + skip, panel, on_diagonal ? first : 0, tile, scratch_of(thread));
      store_tile(args_, part, tile);
    }
  }

  const GemmArgs& args_;
  const Operands& operands_;
  const PreparedGemm& prepared_;
  const Workspace& workspace_;
  char* memory_;
  ThreadPool& pool_;
  const char *a_, *b_;
};

}  // namespace

const TileKernel& default_kernel() {
  for (const TileKernel* kernel : {vector_kernel(best_isa()), onednn_kernel()})
    if (kernel != nullptr) return *kernel;
  return portable_kernel();
}

GemmScratch::GemmScratch(const TileKernel& kernel, int64_t packed_bytes)
    : kernel_(kernel), packed_bytes_(packed_bytes) {}
GemmScratch::~GemmScratch() = default;

const PreparedGemm& GemmScratch::prepare(const GemmArgs& args) {
  const Operands operands = operands_of(args, kernel_);
  const int64_t m = args.c.rows, n = args.c.cols, k = args.a.cols;
  auto& chunk =
      prepared_[Key(m, n, k, operands.dtype, operands.b_ld, args.transpose_b, args.symmetric)];
  if (chunk) return *chunk;
  auto made = std::make_unique<PreparedGemm>();
  const int64_t largest = args.symmetric ? kSmallTile : kernel_.largest_tile(operands.dtype);
  made->rows = cut(m, m <= 512 ? kSmallTile : largest);
  made->cols = cut(n, n <= 512 ? kSmallTile : largest);
  made->depth = k;
  if (k > 0) {
    PanelShape shape{.depth = k,
                     .cols = made->cols.size,
                     .rows = {made->rows.size, made->rows.last},
                     .dtype = operands.dtype,
                     .b_ld = operands.b_ld,
                     .transpose_b = args.transpose_b};
    made->panel = kernel_.panel(shape);
    shape.cols = made->cols.last;
    made->last_panel = kernel_.panel(shape);
    for (const PanelProduct* panel : {made->panel.get(), made->last_panel.get()}) {
      made->packed_bytes =
          std::max(made->packed_bytes, round_up(panel->packed_bytes(), kAlignment));
      made->scratch_bytes =
          std::max(made->scratch_bytes, round_up(panel->scratch_bytes(), kAlignment));
    }
  }
  chunk = std::move(made);
  return *chunk;
}

int64_t GemmScratch::bytes_for(const GemmArgs& args, int threads) {
  check(args);
  if (args.c.rows == 0 || args.c.cols == 0) return 0;
  const PreparedGemm& prepared = prepare(args);
  return Workspace(args, operands_of(args, kernel_), prepared, threads, packed_bytes_).bytes;
}

void gemm(const GemmArgs& args, ThreadPool& pool, GemmScratch& scratch) {
  check(args);
  if (args.c.rows == 0 || args.c.cols == 0) return;
  check_overlap(args, args.a, "A");
  check_overlap(args, args.b, "B");
  if (reads_d(args)) check_overlap(args, args.d, "D");
  const PreparedGemm& prepared = scratch.prepare(args);
  const Operands operands = operands_of(args, scratch.kernel_);
  const Workspace workspace(args, operands, prepared, pool.threads(), scratch.packed_bytes_);
  MUONRT_REQUIRE(scratch.memory_ != nullptr && scratch.bytes_ >= workspace.bytes,
                 Status::kInvalidState, "matrix product of ", args.c.rows, " x ", args.c.cols,
                 " x ", args.a.cols, ": the workspace has ", scratch.bytes_, " bytes, but needs ",
                 workspace.bytes, "; call bytes_for and set_workspace first");
  void* memory = scratch.memory_;
  size_t room = static_cast<size_t>(scratch.bytes_);
  std::align(kAlignment, static_cast<size_t>(workspace.bytes - kAlignment), memory, room);
  TiledProduct(args, operands, prepared, workspace, static_cast<char*>(memory), pool).run();
}

}  // namespace muonrt::host
