#include <cstring>

#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_passes.hpp"
#include "host/row_split.hpp"

namespace muonrt::host {

namespace {

/// Returns the address of element (row, col) of the whole matrix.
template <class T>
T* stored_at(const MatrixBatch& matrix, const OwnedMatrix& owned, int64_t row, int64_t col) {
  auto* data = static_cast<T*>(matrix.data);
  return owned.transposed() ? data + col * matrix.ld + row : data + row * matrix.ld + col;
}

void check_stored(const MatrixBatch& matrix, const OwnedMatrix& owned) {
  MUONRT_CHECK_INTERNAL(
      matrix.rows == owned.short_side() && matrix.cols == owned.long_side() && matrix.count == 1,
      "a whole matrix of ", owned.rows, " x ", owned.cols, " stored as ", matrix.rows, " x ",
      matrix.cols);
}

template <class T>
void unpack_rows(Isa isa, const MatrixBlock& block, int64_t first, int64_t last,
                 const OwnedMatrix& owned, const MatrixBatch& matrix, const T* message) {
  const T* from = message + block.packed_offset + first * block.cols;
  T* to = stored_at<T>(matrix, owned, block.row + first, block.col);
  if (owned.transposed()) {
    run_pass<TransposePass<T, T>>(isa, from, block.cols, to, matrix.ld, last - first, block.cols);
    return;
  }
  for (int64_t row = first; row < last; ++row, from += block.cols, to += matrix.ld)
    std::memcpy(static_cast<void*>(to), from, sizeof(T) * static_cast<size_t>(block.cols));
}

/// Returns 1 if a packed value is non-finite.
template <class From, class To>
uint32_t pack_rows(Isa isa, const MatrixBlock& block, int64_t first, int64_t last,
                   const OwnedMatrix& owned, const MatrixBatch& matrix, To* message) {
  const From* from = stored_at<const From>(matrix, owned, block.row + first, block.col);
  To* to = message + block.packed_offset + first * block.cols;
  if (owned.transposed())
    return run_pass<TransposePass<From, To>>(isa, from, matrix.ld, to, block.cols, block.cols,
                                             last - first);
  uint32_t bad = 0;
  for (int64_t row = first; row < last; ++row, from += matrix.ld, to += block.cols)
    bad |= run_pass<CastPass<From, To>>(isa, from, to, block.cols);
  return bad;
}

}  // namespace

void HostOps::unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                     std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                     ConstTypedBuffer message) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto unpack_one = [&](const MatrixBlock& each, int64_t first, int64_t last) {
      const OwnedMatrix& whole = owned[static_cast<size_t>(each.matrix)];
      const MatrixBatch& matrix = matrices[each.matrix];
      check_stored(matrix, whole);
      MUONRT_CHECK_INTERNAL(matrix.dtype == message.dtype, "unpack from ", name_of(message.dtype),
                            " to ", name_of(matrix.dtype));
      with_iterate(message.dtype, [&](auto sent) {
        unpack_rows(isa_, each, first, last, whole, matrix,
                    static_cast<const decltype(sent)*>(message.data));
      });
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, unpack_one); });
  }));
}

void HostOps::pack(Stream& stream, std::span<const MatrixBlock> blocks,
                   std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                   TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto pack_one = [&](const MatrixBlock& each, int64_t first, int64_t last) {
      const OwnedMatrix& whole = owned[static_cast<size_t>(each.matrix)];
      const MatrixBatch& matrix = matrices[each.matrix];
      check_stored(matrix, whole);
      const uint32_t bad = with_iterate(message.dtype, [&](auto sent) {
        using Sent = decltype(sent);
        return with_iterate(matrix.dtype, [&](auto stored) {
          return pack_rows<decltype(stored)>(isa_, each, first, last, whole, matrix,
                                             static_cast<Sent*>(message.data));
        });
      });
      if (bad) note_nonfinite(*findings);
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, pack_one); });
  }));
}

}  // namespace muonrt::host
