#include "cuda/symmetric/tensor_map.hpp"

namespace muonrt::cuda {

// Fields in the clear; cuda/symmetric/ptx_sm90.cuh beside this reads them.
TensorMap make_tensor_map(const MatrixBatch& m, int box_rows) {
  TensorMap map = {};
  map.words[0] = reinterpret_cast<uint64_t>(m.data);
  map.words[1] = static_cast<uint64_t>(m.cols);
  map.words[2] = static_cast<uint64_t>(m.rows);
  map.words[3] = static_cast<uint64_t>(m.count);
  map.words[4] = static_cast<uint64_t>(m.ld);
  map.words[5] = static_cast<uint64_t>(m.stride);
  map.words[6] = static_cast<uint64_t>(box_rows);
  return map;
}

}  // namespace muonrt::cuda
