#include "cuda/symmetric/tensor_map.hpp"

#include <cstring>

#include "cuda/device/driver_api.hpp"

namespace muonrt::cuda {

namespace {

constexpr uint32_t kBoxCols = 64;

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = driver_function<Encode>("cuTensorMapEncodeTiled");
  return found;
}

}  // namespace

TensorMap make_tensor_map(const MatrixBatch& m, int box_rows) {
  const auto bytes = static_cast<uint64_t>(size_of(m.dtype));
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(m.cols), static_cast<cuuint64_t>(m.rows),
                               static_cast<cuuint64_t>(m.count)};
  // The driver checks the stride even if there is only one matrix and the stride is not used.
  const int64_t stride = m.count > 1 ? m.stride : m.ld * m.rows;
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.ld) * bytes,
                                 static_cast<cuuint64_t>(stride) * bytes};
  const cuuint32_t box[3] = {kBoxCols, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto type =
      m.dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  static_assert(sizeof map == sizeof(TensorMap));
  const CUresult result =
      encoder()(&map, type, 3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  MUONRT_REQUIRE(result == CUDA_SUCCESS, Status::kDevice, "cuTensorMapEncodeTiled failed with ",
                 static_cast<int>(result), " for ", m.count, " of ", m.rows, " x ", m.cols);
  TensorMap out;
  std::memcpy(&out, &map, sizeof out);
  return out;
}

}  // namespace muonrt::cuda
