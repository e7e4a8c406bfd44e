#include "backend/local_stream.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "host/host_device.hpp"
#include "support/world.hpp"
#include "support/wrapped_device.hpp"

using namespace muonrt;

namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Fills memory slowly, as an optimizer with gigabytes of state would.
class SlowFill : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  void fill(Stream& s, void* memory, unsigned char value, int64_t bytes) override {
    host::host_stream(s).enqueue(host::Task([] { sleep_ms(60); }));
    inner_.fill(s, memory, value, bytes);
  }
};

}  // namespace

TEST_CASE("local stream: work has ended when the call returns, even if enqueuing throws",
          "[unit][optimizer]") {
  const auto device = host::make_host_device({});
  LocalStream local(*device);
  std::atomic<int> done = 0;
  const auto enqueue = [&](Stream& stream) {
    host::host_stream(stream).enqueue(host::Task([&done] {
      sleep_ms(50);
      ++done;
    }));
  };
  local.run(enqueue);
  CHECK(done == 1);
  CHECK_THROWS_AS(local.run([&](Stream& stream) {
    enqueue(stream);
    throw std::runtime_error("the second block does not fit");
  }),
                  std::runtime_error);
  CHECK(done == 2);
}

// The timeout applies only to waiting for other ranks, and there is only one rank.
TEST_CASE("local stream: state is initialized even if the timeout of a step is short",
          "[unit][optimizer]") {
  world::Case c = world::on_mesh({1});
  c.settings.groups = world::default_groups();
  c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
  c.settings.timeout_ms = 20;
  c.params.push_back(world::matrix("w", {6, 5}, {{PlacementKind::kReplicate, 0, 1}}));
  c.params.back().dtype = DType::kBF16;
  c.steps = 0;
  CHECK_NOTHROW(world::run(c, [](const OptimizerSettings& settings) {
    return std::make_unique<wrapped::Device>(
        world::host_device(settings), [](Ops& inner) { return std::make_unique<SlowFill>(inner); });
  }));
}
