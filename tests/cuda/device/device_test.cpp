#include <catch2/catch.hpp>

#include "backend/cuda_device.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

constexpr auto kSoon = [] { return Deadline::in_ms(60000); };

}  // namespace

TEST_CASE("cuda device: memory is aligned to 256 bytes, counted, and freed", "[cuda]") {
  const auto device = make_device(true);
  const int64_t calls = device->allocations(), bytes = device->allocated_bytes();
  CHECK(device->allocate(0) == nullptr);
  void* a = device->allocate(1);
  void* b = device->allocate_shared(1000);
  CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
  CHECK(reinterpret_cast<uintptr_t>(b) % 256 == 0);
  CHECK(device->allocations() == calls + 2);
  CHECK(device->allocated_bytes() == bytes + 1001);
  device->release(a);
  device->release(b);
  device->release(nullptr);
  CHECK(device->allocated_bytes() == bytes);
  CHECK_FALSE(device->host_reaches_memory());
}

TEST_CASE(
    "cuda device: symmetric products use the sm_90a kernels by default if the GPU supports them",
    "[cuda]") {
  const auto named = [](const CudaSettings& settings) {
    return make_cuda_device(0, settings)->describe().find("symmetric sm_90a") != std::string::npos;
  };
  bool has_them = true;
  try {
    make_device(SymmetricProvider::kSm90);
  } catch (const Error&) {
    has_them = false;
  }
  CHECK(named({}) == has_them);
  CHECK_FALSE(named({.symmetric = SymmetricProvider::kVendor}));
  CHECK_FALSE(named({.naive_products = true}));
}

TEST_CASE("cuda device: too large an allocation returns an error with its size", "[cuda]") {
  const auto device = make_device(true);
  try {
    device->allocate(int64_t{1} << 50);
    FAIL("got it");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kOutOfMemory);
    CHECK(e.message().find("cannot allocate") != std::string::npos);
  }
}

TEST_CASE("cuda device: distinguishes its memory, pinned memory and host memory", "[cuda]") {
  const auto device = make_device(true);
  const Buffer own(*device, 64), shared = Buffer::shared(*device, 64);
  CHECK(device->reaches(own.data()));
  CHECK(device->reaches(own.as<char>() + 63));
  CHECK(device->reaches(shared.data()));
  CHECK(device->reaches(nullptr));
  static char host[64];
  if (is_emulated()) CHECK_FALSE(device->reaches(host));
}

TEST_CASE("cuda device: an event blocks only the work that waits for it", "[cuda]") {
  const auto device = make_device(true);
  const auto first = device->create_stream(StreamKind::kCompute);
  const auto second = device->create_stream(StreamKind::kComm);
  const auto made = device->create_event(), done = device->create_event();
  const Buffer memory(*device, 4096), result = Buffer::shared(*device, 4096);
  device->wait(*second, *made);  // blocks nothing, because the event was never recorded
  device->synchronize(*made, kSoon());
  for (int round = 1; round <= 3; ++round) {
    device->ops().fill(*first, memory.data(), static_cast<unsigned char>(round), 4096);
    device->record(*made, *first);
    device->wait(*second, *made);
    device->ops().copy(*second, result.data(), memory.data(), 4096);
    device->record(*done, *second);
    device->synchronize(*done, kSoon());
    CHECK(result.as<char>()[0] == round);
    CHECK(result.as<char>()[4095] == round);
  }
  CHECK_FALSE(device->error().has_value());
}

TEST_CASE("cuda device: times grow along a stream", "[cuda]") {
  const auto device = make_device(true);
  const auto stream = device->create_stream(StreamKind::kCompute);
  const auto done = device->create_event();
  const Buffer times = Buffer::shared(*device, 24);
  auto* at = times.as<int64_t>();
  for (int i = 0; i < 3; ++i) device->timestamp(*stream, at + i);
  device->record(*done, *stream);
  device->synchronize(*done, kSoon());
  CHECK(at[0] > 0);
  CHECK(at[1] >= at[0]);
  CHECK(at[2] >= at[1]);
  int64_t elsewhere = 0;
  CHECK_THROWS_AS(device->timestamp(*stream, &elsewhere), Error);
}

TEST_CASE("cuda device: streams and events of another device are rejected", "[cuda]") {
  const auto device = make_device(true), host = make_host();
  const auto stream = host->create_stream(StreamKind::kCompute);
  const auto event = host->create_event(), own = device->create_event();
  CHECK_THROWS_AS(device->record(*own, *stream), Error);
  CHECK_THROWS_AS(device->synchronize(*event, kSoon()), Error);
  CHECK_THROWS_AS(device->ops().fill(*stream, nullptr, 0, 1), Error);
}

TEST_CASE("cuda device: an index without a GPU is rejected with an error that contains it",
          "[cuda]") {
  const int count = cuda_device_count();
  for (const int index : {-1, count}) {
    try {
      make_device(true, index);
      FAIL("made");
    } catch (const Error& e) {
      CHECK(e.status() == Status::kDevice);
      CHECK(e.message().find(cat("device_index is ", index)) != std::string::npos);
    }
  }
}

TEST_CASE("cuda copy: constants, shared and device memory, any size, without a wait", "[cuda]") {
  Machine machine(make_device(true));
  static const int64_t constant[] = {3, 5, 7};
  const Buffer a(*machine.device, 1 << 20), b = Buffer::shared(*machine.device, 1 << 20);
  auto* const shared = b.as<unsigned char>();
  for (const int64_t bytes : {1, 7, 8, 24, 4099, 1 << 20}) {
    const auto n = static_cast<size_t>(bytes);
    for (size_t i = 0; i < n; ++i) shared[i] = static_cast<unsigned char>(i * 7 + n);
    const Buffer third = Buffer::shared(*machine.device, bytes + 1);
    machine.ops().copy(machine.on(), a.data(), shared, bytes);
    machine.ops().copy(machine.on(), third.as<char>(), a.data(), bytes);
    machine.ops().copy(machine.on(), third.as<char>() + 1, shared,
                       bytes);  // copies within shared memory, at an odd address
    machine.finish();
    CHECK(std::memcmp(third.as<char>() + 1, shared, n) == 0);
    CHECK(third.as<unsigned char>()[0] == shared[0]);
  }
  machine.ops().copy(machine.on(), a.data(), constant, sizeof constant);
  CHECK(machine.get(a.as<int64_t>(), 3) == std::vector<int64_t>{3, 5, 7});
  int64_t host = 0;
  CHECK_THROWS_AS(machine.ops().copy(machine.on(), &host, a.data(), 8), Error);
}

TEST_CASE("cuda lists: known lists allocate nothing, and changed lists are detected", "[cuda]") {
  Machine machine(make_device(true));
  const Bytes content = values(1, DType::kF32, 64);
  const MatrixBatch matrix{machine.put(content), DType::kF32, 8, 8, 8, 1, 0};
  auto* message = machine.put(Bytes(256));
  auto* findings = machine.put_one(Findings{});
  const std::vector<OwnedMatrix> owned = {{0, 8, 8}};
  std::vector<MatrixBlock> blocks = {
      {.matrix = 0, .rows = 2, .cols = 4, .row = 0, .col = 0, .packed_offset = 0}};
  const auto packed = [&] {
    machine.ops().pack(machine.on(), blocks, owned, &matrix,
                       {.data = message, .dtype = DType::kF32}, findings);
    return machine.get(reinterpret_cast<const float*>(message), 8);
  };
  packed();
  const int64_t calls = machine.device->allocations();
  machine.ops().pack(machine.on(), blocks, owned, &matrix, {.data = message, .dtype = DType::kF32},
                     findings);
  CHECK(machine.device->allocations() == calls);
  blocks[0].col = 3;
  const auto moved = packed();
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t c = 0; c < 4; ++c)
      CHECK(moved[static_cast<size_t>(r * 4 + c)] == value_in(content, DType::kF32, r * 8 + c + 3));
}
