#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

// The declarations of DLPack 1. The test compares them with the declarations in muonrt's header.
#define DLPACK_DLPACK_H_
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

#include "muonrt/dlpack.h"
#include "muonrt/muonrt.hpp"

using Catch::Contains;

namespace {

struct Matrix {
  std::vector<float> memory = std::vector<float>(14, 1.0f);
  int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
  DLTensor tensor = {memory.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 8};
};

/// Returns the error message, or "" if the tensor is accepted.
std::string read_error(const DLTensor& tensor, enum muonrt_device device = MUONRT_DEVICE_HOST,
                       int32_t device_index = 0) {
  void* data = nullptr;
  enum muonrt_dtype dtype = MUONRT_DTYPE_F16;
  if (muonrt_dlpack_read(&data, &dtype, &tensor, "w", device, device_index) !=
      MUONRT_ERROR_INVALID_ARGUMENT)
    return "";
  return muonrt_get_last_error();
}

}  // namespace

TEST_CASE("dlpack: a parameter and its gradient have the buffers and shapes of the tensors",
          "[unit][abi]") {
  Matrix w, g;
  for (size_t i = 0; i < g.memory.size(); ++i) g.memory[i] = static_cast<float>(i) / 8;
  muonrt_param_t p = muonrt::param();
  p.name = "w";
  REQUIRE(muonrt_param_set_data_dlpack(&p, &w.tensor, MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  REQUIRE(muonrt_param_set_grad_dlpack(&p, &g.tensor, MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  CHECK(p.data == w.memory.data() + 2);
  CHECK(p.grad == g.memory.data() + 2);
  CHECK((p.dtype == MUONRT_DTYPE_F32 && p.grad_dtype == MUONRT_DTYPE_F32));
  CHECK((p.ndim == 2 && p.shape == w.shape && p.local_shape == w.shape));
  muonrt::Optimizer optimizer(muonrt::Comm::self(), muonrt::options(), {muonrt::muon_group()}, {p});
  optimizer.step(0.1);
  CHECK((w.memory[0] == 1.0f && w.memory[1] == 1.0f));  // these elements come before the offset
  CHECK(w.memory[2] != 1.0f);
}

TEST_CASE("dlpack: a shard keeps the whole tensor's shape", "[unit][abi]") {
  Matrix w;
  const int64_t whole[] = {6, 4};
  muonrt_param_t p = muonrt::param();
  p.name = "w";
  p.ndim = 2;
  p.shape = whole;
  REQUIRE(muonrt_param_set_data_dlpack(&p, &w.tensor, MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  CHECK((p.shape == whole && p.local_shape == w.shape));
  w.tensor.ndim = 1;
  w.tensor.strides = w.strides + 1;
  CHECK(muonrt_param_set_data_dlpack(&p, &w.tensor, MUONRT_DEVICE_HOST, 0) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("'w' has 1 dimensions, but must have 2"));
  // The shard of a flat range has one dimension, regardless of the shape of the parameter.
  muonrt_layout_t flat = muonrt::layout();
  flat.kind = MUONRT_LAYOUT_FLAT;
  p.layout = &flat;
  p.local_shape = nullptr;
  REQUIRE(muonrt_param_set_data_dlpack(&p, &w.tensor, MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  CHECK((p.ndim == 2 && p.local_shape == nullptr));
}

TEST_CASE("dlpack: a tensor that muonrt cannot read is rejected with an error that names it",
          "[unit][abi]") {
  Matrix w;
  REQUIRE(read_error(w.tensor).empty());
  const auto check_error = [](const DLTensor& tensor, const char* text) {
    CHECK_THAT(read_error(tensor), Contains("DLPack tensor 'w'") && Contains(text));
  };
  DLTensor t = w.tensor;
  t.dtype = {2, 64, 1};
  check_error(t, "type code 2, 64 bits, 1 lanes");
  t.dtype = {2, 16, 1};
  check_error(t, "type code 2, 16 bits");
  t.dtype = {2, 32, 4};
  check_error(t, "4 lanes");
  t.dtype = {4, 16, 1};
  CHECK(read_error(t).empty());
  t = w.tensor;
  t.device = {2, 1};
  check_error(t, "device type 2, number 1");
  CHECK(read_error(t, MUONRT_DEVICE_CUDA, 1).empty());
  CHECK_THAT(read_error(t, MUONRT_DEVICE_CUDA, 0),
             Contains("number 1, but the optimizer is on CUDA"));
  CHECK_THAT(read_error(w.tensor, MUONRT_DEVICE_CUDA, 0), Contains("device type 1"));
  t = w.tensor;
  t.ndim = 9;
  check_error(t, "9 dimensions");
  t = w.tensor;
  t.shape = nullptr;
  check_error(t, "no shape");
  void* data = nullptr;
  enum muonrt_dtype dtype = MUONRT_DTYPE_F16;
  CHECK(muonrt_dlpack_read(&data, &dtype, nullptr, "w", MUONRT_DEVICE_HOST, 0) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("dlpack: strides must be row-major, except in dimensions of size 0 or 1", "[unit][abi]") {
  Matrix w;
  const auto text = [&](std::vector<int64_t> shape, std::vector<int64_t> strides) {
    DLTensor t = w.tensor;
    t.shape = shape.data();
    t.strides = strides.data();
    return read_error(t);
  };
  CHECK_THAT(text({3, 4}, {1, 3}), Contains("stride 3 in dimension 1, but must have 1"));
  CHECK_THAT(text({3, 4}, {5, 1}), Contains("stride 5 in dimension 0, but must have 4"));
  CHECK(text({3, 1}, {1, 77}).empty());
  CHECK(text({1, 4}, {77, 1}).empty());
  CHECK(text({0, 4}, {77, 77}).empty());
  DLTensor t = w.tensor;
  t.strides = nullptr;
  CHECK(read_error(t).empty());
  int64_t none[2] = {0, 4};
  t.shape = none;
  void* data = &t;
  enum muonrt_dtype dtype = MUONRT_DTYPE_F16;
  REQUIRE(muonrt_dlpack_read(&data, &dtype, &t, "w", MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  CHECK(data == nullptr);
}

TEST_CASE("dlpack: a gradient is rejected if its shape differs from that of the shard",
          "[unit][abi]") {
  Matrix w, g;
  muonrt_param_t p = muonrt::param();
  p.name = "w";
  REQUIRE(muonrt_param_set_data_dlpack(&p, &w.tensor, MUONRT_DEVICE_HOST, 0) == MUONRT_OK);
  const auto text = [&](std::vector<int64_t> shape) {
    g.tensor.shape = shape.data();
    g.tensor.ndim = static_cast<int32_t>(shape.size());
    g.tensor.strides = nullptr;
    const auto status = muonrt_param_set_grad_dlpack(&p, &g.tensor, MUONRT_DEVICE_HOST, 0);
    return std::string(status == MUONRT_OK ? "" : muonrt_get_last_error());
  };
  CHECK_THAT(text({3, 3}), Contains("of 2 dimensions differs from data, of 2, in dimension 1"));
  CHECK_THAT(text({3, 4, 1}), Contains("in dimension 2"));
  CHECK_THAT(text({3}), Contains("in dimension 1"));
  CHECK(p.grad == nullptr);
  CHECK(text({3, 4}).empty());
  CHECK(p.grad != nullptr);
}
