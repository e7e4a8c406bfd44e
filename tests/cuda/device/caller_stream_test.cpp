// Tests steps through the C ABI in a program that uses its own streams and captures some of them.

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "cuda/device/abi_rig.hpp"
#include "cuda/device/busy_stream.hpp"
#include "muonrt/state.h"
#include "muonrt/step_async.h"

using namespace cuda_test;

namespace {

/// The kinds of streams that a caller can pass.
enum class Kind { kNull, kLegacy, kPerThread, kBlocking, kNonBlocking };
constexpr const char* kNames[] = {"null", "legacy", "per thread", "blocking", "non-blocking"};

class CallersStream {
 public:
  explicit CallersStream(Kind kind) : kind_(kind) {
    if (kind == Kind::kLegacy) handle = cudaStreamLegacy;
    if (kind == Kind::kPerThread) handle = cudaStreamPerThread;
    if (kind == Kind::kBlocking || kind == Kind::kNonBlocking)
      cudaStreamCreateWithPriority(&handle, kind == Kind::kBlocking ? 0 : cudaStreamNonBlocking, 0);
  }
  ~CallersStream() {
    if (kind_ == Kind::kBlocking || kind_ == Kind::kNonBlocking) cudaStreamDestroy(handle);
  }
  CallersStream(const CallersStream&) = delete;
  CallersStream& operator=(const CallersStream&) = delete;

  cudaStream_t handle = nullptr;

 private:
  Kind kind_;
};

/// Writes the gradient of the optimizer's vector, after other work that takes some time.
class Writer {
 public:
  explicit Writer(AbiRig& rig)
      : rig_(rig),
        ballast_(*rig.memory.device, is_emulated() ? 4096 : int64_t{1} << 30),
        fresh_(rig.memory.put(std::vector<float>(kNumel, 2.0f))) {}
  void write(cudaStream_t stream) {
    for (int i = 0; i < 20; ++i)
      cudaMemsetAsync(ballast_.data(), i, static_cast<size_t>(ballast_.bytes()), stream);
    cudaMemcpyAsync(rig_.grad, fresh_, kNumel * sizeof(float), cudaMemcpyDefault, stream);
  }

 private:
  AbiRig& rig_;
  muonrt::Buffer ballast_;
  float* fresh_;
};

/// Ends a capture. Returns whether the capture stayed valid until its end.
bool end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t result = cudaStreamEndCapture(stream, &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
  return result == cudaSuccess && graph != nullptr;
}

constexpr cudaStreamCaptureMode kModes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};

}  // namespace

TEST_CASE("caller's stream: a step waits for gradients that the stream still has to write",
          "[cuda]") {
  // Each pair contains the stream that writes and the stream that is passed. By the rules of the
  // default stream, the stream that is passed waits for the stream that writes.
  const std::pair<Kind, Kind> cases[] = {
      {Kind::kBlocking, Kind::kBlocking}, {Kind::kNonBlocking, Kind::kNonBlocking},
      {Kind::kNull, Kind::kNull},         {Kind::kLegacy, Kind::kLegacy},
      {Kind::kBlocking, Kind::kNull},     {Kind::kBlocking, Kind::kLegacy},
      {Kind::kPerThread, Kind::kNull},    {Kind::kPerThread, Kind::kPerThread},
      {Kind::kNull, Kind::kPerThread},    {Kind::kNull, Kind::kBlocking}};
  for (const auto& [writes, passed] : cases) {
    INFO(kNames[static_cast<int>(writes)] << " writes, " << kNames[static_cast<int>(passed)]
                                          << " is passed");
    AbiRig rig;
    ok(rig.create());
    Writer writer(rig);
    const CallersStream theirs(writes), other(passed);
    writer.write(theirs.handle);
    // If the passed stream did not wait, the gradient would be NaN and the step would be skipped.
    CHECK(rig.step(writes == passed ? theirs.handle : other.handle) == MUONRT_OK);
    for (const float x : rig.vector()) CHECK(x < 0.6f);
  }
}

TEST_CASE(
    "caller's stream: an asynchronous step returns before the stream's work has run, and later "
    "work "
    "runs after the step",
    "[cuda]") {
  AbiRig rig, same;
  BusyStream theirs;
  for (AbiRig* each : {&rig, &same}) {
    each->options.timeout_ms = 20000;
    ok(each->create());
    Writer writer(*each);
    writer.write(theirs.handle);
    // The checks of the first step wait for the GPU.
    REQUIRE(each->step(theirs.handle) == MUONRT_OK);
  }
  REQUIRE(same.step(theirs.handle) == MUONRT_OK);
  float* const seen = rig.memory.put(std::vector<float>(kNumel, NAN));
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.lr = 0.5;
  args.stream = theirs.handle;
  theirs.work();
  CHECK(muonrt_optimizer_step_async(rig.optimizer, &args) == MUONRT_OK);
  CHECK_FALSE(theirs.has_ended());
  // The next forward pass reads parameters, and the backward pass overwrites gradients.
  cudaMemcpyAsync(seen, rig.data, kNumel * sizeof(float), cudaMemcpyDefault, theirs.handle);
  cudaMemsetAsync(rig.grad, 0xff, kNumel * sizeof(float), theirs.handle);
  theirs.end();
  cudaStreamSynchronize(theirs.handle);
  CHECK(rig.memory.get(seen, kNumel) == same.vector());
  CHECK(muonrt_optimizer_wait(nullptr, rig.optimizer) == MUONRT_OK);
  CHECK(rig.whole() == same.whole());
}

TEST_CASE("caller's stream: a step that has timed out commits nothing when the stream continues",
          "[cuda]") {
  AbiRig rig;
  rig.options.timeout_ms = 300;
  ok(rig.create());
  Writer writer(rig);
  BusyStream theirs;
  writer.write(theirs.handle);
  REQUIRE(rig.step(theirs.handle) == MUONRT_OK);
  const std::vector<float> before = rig.whole();
  theirs.work();
  CHECK(rig.step(theirs.handle) == MUONRT_ERROR_TIMEOUT);
  theirs.end();
  muonrt_optimizer_destroy(rig.optimizer);  // waits for the enqueued work
  rig.optimizer = nullptr;
  CHECK(rig.whole() == before);
}

TEST_CASE(
    "caller's stream: masters are copied from weights that the default stream still has to write",
    "[cuda]") {
  for (const Kind writes : {Kind::kNull, Kind::kBlocking}) {
    INFO(kNames[static_cast<int>(writes)]);
    AbiRig rig;
    uint16_t* const weights = rig.memory.put(std::vector<uint16_t>(kNumel, 0x7fc0));  // NaN in bf16
    const uint16_t* const fresh = rig.memory.put(std::vector<uint16_t>(kNumel, 0x4000));
    rig.params[1].data = weights;
    rig.params[1].dtype = MUONRT_DTYPE_BF16;
    Writer writer(rig);
    const CallersStream theirs(writes);
    writer.write(theirs.handle);
    cudaMemcpyAsync(weights, fresh, kNumel * sizeof(uint16_t), cudaMemcpyDefault, theirs.handle);
    ok(rig.create());
    muonrt_state_shard_t shards[8];
    for (muonrt_state_shard_t& shard : shards) muonrt_state_shard_init(&shard);
    int64_t count = 0;
    ok(muonrt_optimizer_get_state_shards(shards, 8, &count, rig.optimizer));
    const auto master = std::find_if(shards, shards + count, [](const muonrt_state_shard_t& shard) {
      return shard.param == 1 && shard.kind == MUONRT_STATE_MASTER;
    });
    REQUIRE(master != shards + count);
    for (const float x : rig.memory.get(static_cast<const float*>(master->data), kNumel))
      CHECK(x == 2.0f);
  }
}

TEST_CASE("caller's stream: null does not wait for a non-blocking stream", "[cuda]") {
  if (!is_emulated()) return;  // on a GPU, either stream may run first
  AbiRig rig;
  ok(rig.create());
  Writer writer(rig);
  const CallersStream theirs(Kind::kNonBlocking);
  writer.write(theirs.handle);
  CHECK(rig.step(nullptr) == MUONRT_SKIPPED);
}

TEST_CASE(
    "caller's stream: a captured stream is rejected with an error that names it, and nothing is "
    "committed",
    "[cuda]") {
  for (const Kind kind : {Kind::kPerThread, Kind::kBlocking, Kind::kNonBlocking}) {
    for (const cudaStreamCaptureMode mode : kModes) {
      INFO(kNames[static_cast<int>(kind)] << ", mode " << static_cast<int>(mode));
      AbiRig rig;
      ok(rig.create());
      const CallersStream theirs(kind);
      // The weights are read before the capture, because reading device memory waits for the GPU.
      const std::vector<float> before = rig.whole();
      REQUIRE(cudaStreamBeginCapture(theirs.handle, mode) == cudaSuccess);
      const muonrt_status_t status = rig.step(theirs.handle);
      const std::string message = muonrt_get_last_error();
      CHECK(end_capture(theirs.handle));
      CHECK(status == MUONRT_ERROR_NOT_SUPPORTED);
      CHECK(message.find("captured into a graph") != std::string::npos);
      CHECK(rig.whole() == before);
    }
  }
}

TEST_CASE("caller's stream: a default stream that a capture forbids is rejected with an error",
          "[cuda]") {
  for (const Kind passed : {Kind::kNull, Kind::kLegacy}) {
    AbiRig rig;
    ok(rig.create());
    const CallersStream captured(Kind::kBlocking), theirs(passed);
    const std::vector<float> before = rig.whole();
    REQUIRE(cudaStreamBeginCapture(captured.handle, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    const muonrt_status_t status = rig.step(theirs.handle);
    const std::string message = muonrt_get_last_error();
    CHECK(end_capture(captured.handle));
    CHECK(status == MUONRT_ERROR_NOT_SUPPORTED);
    CHECK(message.find("captured into a graph") != std::string::npos);
    CHECK(rig.whole() == before);
  }
}

TEST_CASE("caller's stream: during the capture of a blocking stream only masters are rejected",
          "[cuda]") {
  for (const cudaStreamCaptureMode mode : kModes) {
    for (const bool masters : {false, true}) {
      INFO("mode " << static_cast<int>(mode) << (masters ? ", with masters" : ""));
      AbiRig rig;
      if (masters) {
        rig.params[1].data = rig.memory.put(std::vector<uint16_t>(kNumel, 0x4000));
        rig.params[1].dtype = MUONRT_DTYPE_BF16;
      }
      const CallersStream captured(Kind::kBlocking);
      REQUIRE(cudaStreamBeginCapture(captured.handle, mode) == cudaSuccess);
      const muonrt_status_t status = rig.create();
      const std::string message = status == MUONRT_OK ? "" : muonrt_get_last_error();
      CHECK(end_capture(captured.handle));
      INFO(message);
      CHECK(status == (masters ? MUONRT_ERROR_NOT_SUPPORTED : MUONRT_OK));
      CHECK(message.starts_with(masters
                                    ? "master weights: a blocking stream, for which the default "
                                      "stream would wait, is being captured into a graph"
                                    : ""));
    }
  }
}

TEST_CASE(
    "caller's stream: a step during the capture of another stream works and leaves the capture "
    "valid",
    "[cuda]") {
  for (const bool elsewhere : {false, true}) {
    for (const cudaStreamCaptureMode mode : kModes) {
      INFO("mode " << static_cast<int>(mode) << (elsewhere ? ", by another thread" : ""));
      AbiRig rig;
      ok(rig.create());
      Writer writer(rig);
      const CallersStream captured(Kind::kNonBlocking), theirs(Kind::kNonBlocking);
      writer.write(theirs.handle);
      REQUIRE(rig.step(theirs.handle) == MUONRT_OK);  // the first step allocates memory
      REQUIRE(cudaStreamBeginCapture(captured.handle, mode) == cudaSuccess);
      muonrt_status_t status = MUONRT_ERROR_INTERNAL;
      std::string message;
      const auto step = [&] {
        status = rig.step(theirs.handle);
        message = muonrt_get_last_error();
      };
      if (elsewhere) {
        std::thread(step).join();
      } else {
        step();
      }
      CHECK(end_capture(captured.handle));
      INFO(message);
      CHECK(status == MUONRT_OK);
    }
  }
}
