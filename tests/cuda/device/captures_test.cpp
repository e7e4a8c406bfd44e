// Tests that a capture stays valid if muonrt waits or allocates while the program captures one of
// its streams.

#include <catch2/catch.hpp>
#include <utility>

#include "control.hpp"
#include "cuda/device/abi_rig.hpp"
#include "cuda/device/cuda_device.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr cudaStreamCaptureMode kModes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};

/// A capture that the program has started.
class Capture {
 public:
  explicit Capture(cudaStreamCaptureMode mode) {
    cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0);
    cudaStreamBeginCapture(stream_, mode);
  }
  ~Capture() { cudaStreamDestroy(stream_); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  /// Ends the capture. Returns whether it stayed valid until its end.
  bool end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t result = cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return result == cudaSuccess;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A caller's allocator that counts the operations that are pending when memory is released.
struct CountingAllocator {
  static void* allocate(void*, int64_t bytes, int, void*) {
    void* memory = nullptr;
    cudaMalloc(&memory, static_cast<size_t>(bytes));
    return memory;
  }
  static void release(void* state, void* memory, int64_t, int, void*) {
    static_cast<CountingAllocator*>(state)->pending += emulator::pending();
    cudaFree(memory);
  }
  int64_t pending = 0;
};

}  // namespace

TEST_CASE("captures: new and changed lists during a capture leave it valid", "[emulated]") {
  for (const cudaStreamCaptureMode mode : kModes) {
    INFO("mode " << static_cast<int>(mode));
    Machine machine(make_device(true));
    const MatrixBatch matrix{machine.put(values(1, DType::kF32, 64)), DType::kF32, 8, 8, 8, 1, 0};
    auto* message = machine.put(Bytes(256));
    auto* findings = machine.put_one(Findings{});
    const std::vector<OwnedMatrix> owned = {{0, 8, 8}};
    std::vector<MatrixBlock> blocks = {
        {.matrix = 0, .rows = 2, .cols = 4, .row = 0, .col = 0, .packed_offset = 0}};
    Capture capture(mode);
    for (int64_t col = 0; col < 3; ++col) {
      blocks[0].col = col;
      CHECK_NOTHROW(machine.ops().pack(machine.on(), blocks, owned, &matrix,
                                       {.data = message, .dtype = DType::kF32}, findings));
    }
    CHECK(capture.end());
  }
}

TEST_CASE(
    "captures: during a capture memory returns to the caller's allocator after its work has ended",
    "[emulated]") {
  for (const cudaStreamCaptureMode mode : kModes) {
    INFO("mode " << static_cast<int>(mode));
    CountingAllocator counting;
    cuda::CudaDevice device(
        0, {.naive_products = true,
            .allocator = {&counting, CountingAllocator::allocate, CountingAllocator::release}});
    const auto compute = device.create_stream(StreamKind::kCompute);
    const auto comm = device.create_stream(StreamKind::kComm);
    Buffer memory(device, 64);
    Capture capture(mode);
    for (Stream* stream : {compute.get(), comm.get()})
      device.ops().fill(*stream, memory.data(), 1, 64);
    memory = Buffer();
    CHECK(counting.pending == 0);
    CHECK(capture.end());
  }
}

TEST_CASE(
    "captures: an optimizer that is created, stepped and destroyed during a capture leaves it "
    "valid",
    "[emulated]") {
  for (const cudaStreamCaptureMode mode : kModes) {
    INFO("mode " << static_cast<int>(mode));
    AbiRig rig;
    muonrt_allocator_t allocator;
    muonrt_allocator_init(&allocator);
    allocator.allocate = [](void*, int64_t bytes, int32_t, void*) -> void* {
      void* memory = nullptr;
      return cudaMalloc(&memory, static_cast<size_t>(bytes)) == cudaSuccess ? memory : nullptr;
    };
    allocator.release = [](void*, void* memory, int64_t, int32_t, void*) { cudaFree(memory); };
    if (mode == cudaStreamCaptureModeGlobal)
      rig.tuning.allocator = &allocator;  // tests the allocator in the strictest mode
    const float* const gradient = rig.memory.put(std::vector<float>(kNumel, 2.0f));
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
    Capture capture(mode);
    CHECK(rig.create() == MUONRT_OK);
    ok(muonrt_optimizer_set_grad(rig.optimizer, 1, gradient));
    CHECK(rig.step(stream) == MUONRT_OK);
    muonrt_optimizer_destroy(std::exchange(rig.optimizer, nullptr));
    CHECK(capture.end());
    cudaStreamDestroy(stream);
  }
}

TEST_CASE("captures: symmetric products of new shapes and graphs during a capture leave it valid",
          "[emulated]") {
  for (const cudaStreamCaptureMode mode : kModes) {
    INFO("mode " << static_cast<int>(mode));
    Machine machine(make_cuda_device(
        0, {.naive_products = true, .symmetric = SymmetricProvider::kSm90, .graphs = true}));
    MatrixBatch x{nullptr, DType::kBF16, 40, 40, 40, 1, 0}, c = x;
    x.data = machine.put(values(1, DType::kBF16, 1600));
    c.data = machine.put(values(2, DType::kBF16, 1600));
    Product product;
    product.a = product.b = x, product.c = c;
    product.transpose_b = product.symmetric = true;
    GraphCapture* const recorder = graph_capture_of(*machine.device);
    std::unique_ptr<DeviceGraph> recording;
    Capture capture(mode);
    CHECK_NOTHROW(machine.ops().multiply(machine.on(), product));
    CHECK_NOTHROW(recording = capture_graph(*recorder, machine.on(), [&] {
                    machine.ops().multiply(machine.on(), product);
                  }));
    recording.reset();
    CHECK(capture.end());
  }
}
