// Tests muonrt_orthogonalize() and muonrt_symmetric_product() on the caller's streams and in
// graphs.

#include "muonrt/orthogonalize.h"

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "algo/newton_schulz.hpp"
#include "cuda/device/abi_rig.hpp"

using namespace cuda_test;
using muonrt::DType;

namespace {

struct Callers {
  cudaStream_t stream = nullptr;
  Callers() { cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0); }
  ~Callers() { cudaStreamDestroy(stream); }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;
};

struct Orthogonalizer {
  muonrt_orthogonalizer_t* handle = nullptr;

  explicit Orthogonalizer(muonrt_dtype_t iteration = 0, muonrt_form_t form = MUONRT_FORM_AUTO) {
    muonrt_optimizer_options_t options;
    muonrt_optimizer_options_init(&options);
    options.device = MUONRT_DEVICE_CUDA;
    muonrt_group_t group;
    muonrt_group_init_muon(&group);
    group.iteration_dtype = iteration;
    group.form = form;
    ok(muonrt_orthogonalizer_create(&handle, &options, &group));
  }
  ~Orthogonalizer() { muonrt_orthogonalizer_destroy(handle); }
  Orthogonalizer(const Orthogonalizer&) = delete;
  Orthogonalizer& operator=(const Orthogonalizer&) = delete;
};

/// A tensor in GPU memory.
struct Tensor {
  std::vector<int64_t> shape, strides;
  muonrt_dltensor_t c{};

  Tensor(void* data, DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)) {
    c.data = static_cast<char*>(data);
    c.device_type = 2;
    c.type_code = dtype == DType::kBF16 ? 4 : 2;
    c.type_bits = dtype == DType::kF32 ? 32 : 16;
    c.type_lanes = 1;
  }
  const muonrt_dltensor_t* view() {
    c.ndim = static_cast<int32_t>(shape.size());
    c.shape = shape.data();
    c.strides = strides.empty() ? nullptr : strides.data();
    return &c;
  }
};

constexpr int64_t kM = 24, kN = 40, kCount = 2;
constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace

TEST_CASE(
    "orthogonalize on CUDA: after the first call none waits or allocates, and a graph repeats it",
    "[cuda]") {
  Machine machine(make_device(false));
  const Callers callers;
  for (const DType dtype : kAll) {
    Orthogonalizer with;
    const int64_t bytes = kCount * kM * kN * size_of(dtype);
    const Bytes first = values(1, dtype, kCount * kM * kN),
                second = values(2, dtype, kCount * kM * kN);
    auto* const in = machine.put(first);
    auto* const out = machine.put(Bytes(static_cast<size_t>(bytes)));
    auto* const square = machine.put(Bytes(static_cast<size_t>(kCount * kM * kM * size_of(dtype))));
    auto* const nonfinite = machine.put(std::vector<int64_t>(1, 7));
    Tensor x(in, dtype, {kCount, kM, kN}), o(out, dtype, {kCount, kM, kN});
    Tensor c(square, dtype, {kCount, kM, kM});
    const auto call = [&] {
      const muonrt_status_t status =
          muonrt_orthogonalize(o.view(), nonfinite, with.handle, x.view(), callers.stream);
      return status != MUONRT_OK ? status
                                 : muonrt_symmetric_product(c.view(), with.handle, 1.5, x.view(), 0,
                                                            nullptr, callers.stream);
    };
    const auto results = [&] {
      cudaStreamSynchronize(callers.stream);
      CHECK(machine.get(nonfinite, 1)[0] == 0);
      const Bytes product = machine.get(square, kCount * kM * kM * size_of(dtype));
      Bytes all = machine.get(out, bytes);
      all.insert(all.end(), product.begin(), product.end());
      return all;
    };
    const auto write = [&](const Bytes& from) {
      cudaMemcpyAsync(in, from.data(), from.size(), cudaMemcpyDefault, callers.stream);
      cudaStreamSynchronize(callers.stream);
    };
    REQUIRE(cudaStreamBeginCapture(callers.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(call() == MUONRT_ERROR_NOT_SUPPORTED);  // a first call cannot be captured
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(callers.stream, &graph) == cudaSuccess);
    cudaGraphDestroy(graph);
    ok(call());
    const Bytes of_first = results();
    write(second);
    const int64_t before = slow_calls();
    ok(call());
    CHECK(slow_calls() == before);
    const Bytes of_second = results();
    CHECK(of_first != of_second);
    REQUIRE(cudaStreamBeginCapture(callers.stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK(call() == MUONRT_OK);
    REQUIRE(cudaStreamEndCapture(callers.stream, &graph) == cudaSuccess);
    cudaGraphExec_t launched = nullptr;
    REQUIRE(cudaGraphInstantiate(&launched, graph, 0) == cudaSuccess);
    write(first);
    REQUIRE(cudaGraphLaunch(launched, callers.stream) == cudaSuccess);
    CHECK(results() == of_first);
    cudaGraphExecDestroy(launched);
    cudaGraphDestroy(graph);
  }
}

TEST_CASE("orthogonalize on CUDA: a matrix has the bits of the pipeline's Newton-Schulz",
          "[cuda]") {
  Machine machine(make_device(false));
  for (const auto form : {MUONRT_FORM_STANDARD, MUONRT_FORM_GRAM}) {
    Orthogonalizer with(0, form);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool by_columns : {false, true}) {
        using namespace muonrt;
        const bool gram = form == MUONRT_FORM_GRAM;
        NewtonSchulzOptions options;
        options.gram_iteration = DType::kF16;
        const NewtonSchulz settings = make_newton_schulz(
            CoefficientFamily::kPolarExpress, default_settings(CoefficientFamily::kPolarExpress),
            DType::kBF16, options);
        const Method method{gram ? Form::kGram : Form::kStandard, 5,
                            gram ? settings.gram_restarts : std::vector<int>{}};
        const int64_t ld = machine.ops().leading_dimension(kN, dtype);
        const Bytes given = values(3, dtype, kM * ld);
        const MatrixBatch raw{machine.put(given), dtype, kM, kN, ld, 1, kM * ld};
        const Buffer space(*machine.device,
                           newton_schulz_workspace(machine.ops(), settings, method, kM, kN, 1));
        reserve(machine.ops(), settings, method, kM, kN);
        const OrthogonalizeArgs args{&settings, &method, raw, space.data(), nullptr};
        const Orthogonalization alone(machine.ops(), machine.on(), std::span(&args, 1),
                                      machine.put_one(Findings{}));
        alone.enqueue();
        machine.finish();
        const MatrixBatch result = alone.results()[0];
        // f32 can represent every value of the result. If by_columns is true, the output is tall,
        // and the function writes it transposed.
        auto* const out = machine.put(std::vector<float>(kM * kN));
        Tensor x(raw.data, dtype, {kM, kN}, {ld, 1});
        Tensor o(out, DType::kF32, {kM, kN},
                 by_columns ? std::vector<int64_t>{1, kM} : std::vector<int64_t>{kN, 1});
        ok(muonrt_orthogonalize(o.view(), nullptr, with.handle, x.view(), nullptr));
        cudaStreamSynchronize(nullptr);
        const std::vector<float> got = machine.get(out, kM * kN);
        const Bytes expected = machine.get(static_cast<const unsigned char*>(result.data),
                                           kM * result.ld * size_of(result.dtype));
        int64_t wrong = 0;
        for (int64_t i = 0; i < kM; ++i)
          for (int64_t j = 0; j < kN; ++j)
            wrong += got[static_cast<size_t>(by_columns ? j * kM + i : i * kN + j)] !=
                     value_in(expected, result.dtype, i * result.ld + j);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("orthogonalize on CUDA: a matrix that is not finite becomes NaN and is reported",
          "[cuda]") {
  Machine machine(make_device(false));
  Orthogonalizer with;
  std::vector<float> given(kCount * kM * kN, 0.25f);
  given[kM * kN + 77] = INFINITY;
  auto* const data = machine.put(given);
  auto* const nonfinite = machine.put(std::vector<int64_t>(1, 0));
  Tensor x(data, DType::kF32, {kCount, kM, kN});
  ok(muonrt_orthogonalize(x.view(), nonfinite, with.handle, x.view(), nullptr));
  cudaStreamSynchronize(nullptr);
  CHECK(machine.get(nonfinite, 1)[0] == 1);
  const std::vector<float> got = machine.get(data, kCount * kM * kN);
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::isnan(got[i]) == (i >= kM * kN));
  std::vector<float> on_host(16);
  x.c.data = reinterpret_cast<char*>(on_host.data());
  x.shape = {4, 4};
  CHECK(muonrt_orthogonalize(x.view(), nullptr, with.handle, x.view(), nullptr) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
}
