// What a device wants side by side, and what the pipeline makes of it.

#include <atomic>
#include <catch2/catch.hpp>

#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "support/wrapped_device.hpp"

using namespace muonrt;

namespace {

/// Calls of `multiply`, by all ranks.
struct Calls {
  std::atomic<int64_t> all{0}, mixed{0};
};

/// The host's ops with another appetite.
class SideBySide : public wrapped::Ops {
 public:
  SideBySide(muonrt::Ops& inner, Together together, Calls& calls)
      : wrapped::Ops(inner), together_(together), calls_(calls) {}
  Together together() const override { return together_; }
  void multiply(Stream& s, std::span<const Product> products) override {
    ++calls_.all;
    calls_.mixed += products.size() > 1;
    inner_.multiply(s, products);
  }

 private:
  Together together_;
  Calls& calls_;
};

/// Several shapes, groups with other lists, forms and dtypes, three slots or so.
world::Case make_case() {
  world::Case c;
  c.mesh = {2};
  c.world = 2;
  c.steps = 3;
  c.settings.chunk_bytes = 12000;
  c.settings.health_every = 2;
  c.settings.poison = true;
  for (int i = 0; i < 3; ++i) c.settings.groups.push_back(GroupSettings::defaults(Role::kMuon));
  c.settings.groups[1].form = FormChoice::kGram;
  c.settings.groups[1].iteration = DType::kBF16;
  c.settings.groups[1].normuon = NormuonAxis::kRows;
  c.settings.groups[2].coefficients = CoefficientFamily::kKellerJordan;
  c.settings.groups[2].row_scaling = RowScaling::kAol;
  const std::vector<int64_t> shapes[] = {{24, 40}, {40, 24}, {16, 64}, {5, 7},  {24, 40},
                                         {33, 12}, {1, 30},  {16, 64}, {50, 50}};
  int number = 0;
  for (const auto& shape : shapes) {
    c.params.push_back(
        world::matrix(cat("w", number), shape, {{PlacementKind::kShard, number % 2, 1}}));
    ++number;
  }
  c.adjust = [](OptimizerSettings& s, int) {
    for (size_t i = 0; i < s.params.size(); ++i) s.params[i].group = static_cast<int32_t>(i % 3);
  };
  return c;
}

world::Tensors run(const world::Case& c, Together together, Calls& calls, int64_t* bytes) {
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::Tensors out;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm, [&](const OptimizerSettings& s) -> std::unique_ptr<Device> {
      return std::make_unique<wrapped::Device>(
          world::host_device(s), [&](muonrt::Ops& inner) -> std::unique_ptr<muonrt::Ops> {
            return std::make_unique<SideBySide>(inner, together, calls);
          });
    });
    StepReport report;
    for (int step = 0; step < c.steps; ++step) RANK_CHECK(rank.step(step, report) == Status::kOk);
    const std::lock_guard lock(mutex);
    rank.add_to(out, seen);
    *bytes = std::max(*bytes, rank.optimizer().device().allocated_bytes());
  });
  return out;
}

}  // namespace

TEST_CASE("lockstep: a slot's shapes side by side give the bits of one after the other",
          "[unit][pipeline][bits]") {
  const world::Case c = make_case();
  Calls alone;
  int64_t alone_bytes = 0;
  const world::Tensors expected = run(c, {.elements = 0, .shapes = false}, alone, &alone_bytes);
  CHECK(alone.mixed == 0);
  int64_t fewest = alone.all;
  for (const int64_t elements : {0, 1000, 2500, 1 << 20}) {
    for (const bool shapes : {false, true}) {
      INFO(elements << " elements, shapes " << shapes);
      Calls calls;
      int64_t bytes = 0;
      CHECK(run(c, {.elements = elements, .shapes = shapes}, calls, &bytes) == expected);
      CHECK((calls.mixed > 0) == (shapes && elements > 0));
      CHECK(calls.all <= (shapes ? fewest : alone.all.load()));
      if (shapes) fewest = calls.all;
      // An element of a square takes 10 bytes for itself and 16 for r, z, q and the spare; up to
      // twice that with the padding of matrices this small.
      CHECK(bytes <= alone_bytes + 2 * 26 * elements);
    }
  }
  CHECK(2 * fewest < alone.all);
}
