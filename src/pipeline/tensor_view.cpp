#include "pipeline/tensor_view.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace muonrt {

int64_t TensorView::count() const {
  int64_t out = 1;
  for (size_t i = 0; i + 2 < shape.size(); ++i) out *= shape[i];
  return out;
}

int64_t TensorView::offset_of(int64_t matrix) const {
  int64_t out = 0;
  for (size_t i = shape.size() - 2; i-- > 0; matrix /= shape[i])
    out += matrix % shape[i] * strides[i];
  return out;
}

namespace {

int64_t last_offset(const TensorView& t) {
  int64_t out = 0;
  for (size_t i = 0; i < t.shape.size(); ++i) out += (t.shape[i] - 1) * t.strides[i];
  return out;
}

/// Returns true if `offset` is the sum of d_i strides_i for some integers d_i with |d_i| < shape_i.
/// Reads only the dimensions from `at` on. They must be in descending order of their strides, and
/// the stride of each must be larger than the extent of all following dimensions together.
bool meets(const std::vector<std::pair<int64_t, int64_t>>& dims, size_t at, int64_t offset) {
  if (at == dims.size()) return offset == 0;
  const auto [stride, size] = dims[at];
  if (stride == 0) return meets(dims, at + 1, offset);
  const int64_t below = offset >= 0 ? offset / stride : -ceil_div(-offset, stride);
  for (const int64_t d : {below, below + 1})
    if (std::abs(d) < size && meets(dims, at + 1, offset - d * stride)) return true;
  return false;
}

/// Returns true if a tensor shares an element with another tensor of the same shape, strides and
/// dtype. The addresses of the two tensors differ by `bytes_apart`.
bool equal_views_meet(const TensorView& a, int64_t bytes_apart) {
  const int64_t size = size_of(a.dtype);
  if (bytes_apart % size != 0) return true;  // elements partly overlap
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t i = 0; i < a.shape.size(); ++i) dims.emplace_back(a.strides[i], a.shape[i]);
  std::sort(dims.rbegin(), dims.rend());
  return meets(dims, 0, bytes_apart / size);
}

}  // namespace

void require_same_or_apart(const TensorView& out, const char* out_name, const TensorView& in,
                           const char* in_name) {
  if (out == in || out.is_empty() || in.is_empty()) return;
  const auto begin = [](const TensorView& t) { return reinterpret_cast<uintptr_t>(t.data); };
  const auto end = [&](const TensorView& t) {
    return begin(t) + static_cast<uintptr_t>((last_offset(t) + 1) * size_of(t.dtype));
  };
  if (end(out) <= begin(in) || end(in) <= begin(out)) return;
  const bool alike = out.shape == in.shape && out.strides == in.strides && out.dtype == in.dtype;
  const auto apart = static_cast<int64_t>(begin(in) - begin(out));
  MUONRT_REQUIRE(alike && !equal_views_meet(out, apart), Status::kInvalidArgument, out_name,
                 " and ", in_name, " overlap, but are not the same tensor (", out_name, " begins ",
                 -apart, " bytes after ", in_name, ", with shape ", out.shape, ", strides ",
                 out.strides, ", dtype ", name_of(out.dtype), " and shape ", in.shape, ", strides ",
                 in.strides, ", dtype ", name_of(in.dtype),
                 "); pass the same tensor, or separate memory");
}

namespace {

template <class Bits>
int64_t first_with(const void* data, int64_t offset, int64_t n, Bits exponent) {
  const Bits* const bits = static_cast<const Bits*>(data) + offset;
  Bits any = 0;
  for (int64_t i = 0; i < n; ++i) any |= (bits[i] & exponent) == exponent ? Bits{1} : Bits{0};
  for (int64_t i = 0; any && i < n; ++i)
    if ((bits[i] & exponent) == exponent) return i;
  return -1;
}

}  // namespace

std::optional<std::vector<int64_t>> find_nonfinite(const TensorView& x) {
  const bool by_columns = x.column_major();
  const int64_t lines = by_columns ? x.cols() : x.rows(), n = by_columns ? x.rows() : x.cols();
  const int64_t ld = x.strides[x.strides.size() - (by_columns ? 1 : 2)];
  for (int64_t matrix = 0; matrix < x.count(); ++matrix) {
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t offset = x.offset_of(matrix) + line * ld;
      const int64_t at =
          x.dtype == DType::kF32
              ? first_with<uint32_t>(x.data, offset, n, 0x7f800000)
              : first_with<uint16_t>(x.data, offset, n, x.dtype == DType::kF16 ? 0x7c00 : 0x7f80);
      if (at < 0) continue;
      std::vector<int64_t> index(x.shape.size());
      index[index.size() - 2] = by_columns ? at : line;
      index[index.size() - 1] = by_columns ? line : at;
      int64_t rest = matrix;
      for (size_t i = index.size() - 2; i-- > 0; rest /= x.shape[i]) index[i] = rest % x.shape[i];
      return index;
    }
  }
  return std::nullopt;
}

}  // namespace muonrt
