#include "cuda/device/cached_memory.hpp"

#include <catch2/catch.hpp>
#include <memory>

#include "control.hpp"
#include "cuda/device/busy_stream.hpp"
#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;
using cuda::CachedMemory;

namespace {

constexpr int64_t kBytes = 12'340;  // no other object of this process has this size

void* address_of(int64_t bytes, bool pinned, int device = 0) {
  return CachedMemory(device, bytes, pinned).data();
}

}  // namespace

TEST_CASE("cached memory: an unused block is reused, without a call that waits", "[emulated]") {
  for (const bool pinned : {false, true}) {
    void* const first = address_of(kBytes, pinned);
    const int64_t calls = emulator::slow_calls();
    CHECK(address_of(kBytes, pinned) == first);
    CHECK(address_of(kBytes - 1, pinned) == first);
    CHECK(address_of(kBytes / 2, pinned) == first);
    CHECK(emulator::slow_calls() == calls);
  }
}

TEST_CASE("cached memory: a block has the size, the kind and the GPU that were requested",
          "[emulated]") {
  const int64_t bytes = 7 * kBytes;
  void* const first = address_of(bytes, false);
  CHECK(address_of(bytes + 1, false) != first);
  CHECK(address_of(bytes / 2 - 1, false) != first);  // a block twice as large is not reused
  CHECK(address_of(bytes, true) != first);
  CHECK(address_of(bytes, false, 1) != first);
  const CachedMemory one(0, bytes, false), other(0, bytes, false);
  CHECK(one.data() != other.data());
  CHECK((one.bytes() >= bytes && other.bytes() >= bytes));
}

TEST_CASE("cached memory: a block that pending work uses is not reused", "[emulated]") {
  const int64_t bytes = 51 * kBytes;
  Machine machine(make_device(true));
  BusyStream first, second;
  const auto ends = [](BusyStream& stream) {
    auto event = std::make_shared<cuda::CudaEvent>(0);
    cudaEventRecord(event->handle(), stream.handle);
    return event;
  };
  first.work();
  second.work();
  void* used = nullptr;
  {
    CachedMemory memory(0, bytes, true);
    used = memory.data();
    memory.keep_until(ends(first));
    memory.keep_until(nullptr);
    memory.keep_until(ends(second));
  }
  CHECK(address_of(bytes, true) != used);
  first.end();
  for (int i = 0; i < 2; ++i) {
    const CachedMemory other(0, bytes, true), one(0, bytes, true);
    CHECK((one.data() != used && other.data() != used));
  }
  second.end();
  const CachedMemory one(0, bytes, true), other(0, bytes, true), third(0, bytes, true);
  CHECK((one.data() == used || other.data() == used || third.data() == used));
}

TEST_CASE("cached memory: an exhausted GPU returns an error", "[emulated]") {
  emulator::fail_allocation(1);
  CHECK_THROWS_WITH(CachedMemory(0, 997 * kBytes, false), Catch::StartsWith("cudaMalloc"));
  CHECK(CachedMemory(0, 997 * kBytes, false).bytes() == 997 * kBytes);
}
