#include <catch2/catch.hpp>

#include "plan/owners/cost.hpp"
#include "support/bits_cases.hpp"

// Replicas that share the work, and replicas that each do it: the same bits, other counts.

using namespace muonrt;

namespace {

constexpr int kSteps = 2;

world::Case hybrid(Replicas replicas, int mesh, CommitMode commit) {
  bits::Factors f;
  f.mesh = static_cast<size_t>(mesh);
  f.scheme = 1;  // HSDP: the first mesh dim replicates
  f.commit = commit == CommitMode::kEager;
  f.chunk = 0;
  world::Case c = bits::make(f, false, kSteps);
  c.settings.replicas = replicas;
  return c;
}

ParamSpec square(const char* name, int64_t side, std::vector<int64_t> mesh,
                 const std::vector<Placement>& placements) {
  ParamSpec out;
  out.name = name;
  out.layout = Layout::from_placements(std::make_shared<const Mesh>(std::move(mesh)), {side, side},
                                       placements, Reading::kLiteral);
  return out;
}

const Placement kR{PlacementKind::kReplicate, 0, 1}, kS{PlacementKind::kShard, 0, 1};

}  // namespace

TEST_CASE("replicas: once, each and auto give the same bits", "[bits][replicas]") {
  const world::Tensors expected = bits::reference(false, kSteps);
  constexpr int64_t kMatrices = 9;
  for (const int mesh : {5, 6, 8, 10, 13}) {
    for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
      for (const Replicas replicas : {Replicas::kOnce, Replicas::kEach, Replicas::kAuto}) {
        const world::Case c = hybrid(replicas, mesh, commit);
        INFO(c.describe() << " replicas " << static_cast<int>(replicas));
        const world::Outcome outcome = world::run(c);
        CHECK((outcome.tensors == expected));
        for (const StepReport& r : outcome.reports) {
          CHECK(r.orthogonalized == r.planned);
          if (replicas == Replicas::kOnce) CHECK(r.planned == kMatrices);
          if (replicas == Replicas::kEach) CHECK(r.planned == kMatrices * c.mesh[0]);
        }
      }
    }
  }
}

TEST_CASE("replicas: each for itself moves nothing between replicas", "[unit][plan][replicas]") {
  Problem p;
  p.options.world = 6;
  p.options.replicas = Replicas::kEach;
  p.params = {square("a", 64, {2, 3}, {kR, kS}), square("b", 48, {2, 3}, {kR, kS})};
  const Plan plan(p);
  REQUIRE(plan.matrices().size() == 4);
  for (const Matrix& m : plan.matrices()) CHECK(m.owner / 3 == m.replica);
  for (int rank = 0; rank < 6; ++rank) {
    for (const SlotPlan& slot : plan.rank_slots(rank)) {
      for (const auto* list : {&slot.gather_sends, &slot.return_sends, &slot.return_receives}) {
        for (const Region& region : *list) CHECK(region.peer / 3 == rank / 3);
      }
    }
  }
  // The caller's owner stands for its counterparts in the other replicas.
  p.params[0].owner = 4;
  const Plan given(p);
  CHECK(given.matrices()[0].owner == 1);
  CHECK(given.matrices()[1].owner == 4);
}

TEST_CASE("replicas: auto takes what the model calls cheaper and says both",
          "[unit][plan][replicas]") {
  Problem p;
  p.options.world = 2;
  p.options.replicas = Replicas::kAuto;
  p.params = {square("a", 64, {2}, {kR}), square("b", 64, {2}, {kR})};
  // Products for nothing: to repeat them saves the messages.
  p.options.rates = {1e30, 1e9, 1e-5};
  const Plan each(p);
  CHECK(each.each_replica());
  CHECK(each.each_seconds() < each.once_seconds());
  CHECK(each.describe().find("once in every replica (modelled: ") != std::string::npos);
  // Messages for nothing.
  p.options.rates = {1e6, 1e30, 0};
  const Plan once(p);
  CHECK_FALSE(once.each_replica());
  CHECK(once.once_seconds() < once.each_seconds());
  // By hand: one of two equal matrices each, one message with it to the other rank, none back.
  p.options.rates = {1e9, 1e6, 1e-3};
  const Plan counted(p);
  const double cost = counted.matrices()[0].cost;
  CHECK(counted.once_seconds() == Approx(cost / 1e9 + 64 * 64 * 2 / 1e6 + 1e-3));
  CHECK(counted.each_seconds() == Approx(2 * cost / 1e9));
}

TEST_CASE("replicas: auto plans no copies that cannot pay, and copies beyond 63 bits say so",
          "[unit][plan][replicas]") {
  // About 10^15 FLOPs a copy, of which there are 16,384.
  Problem p;
  p.options.world = 1 << 12;
  p.options.replicas = Replicas::kAuto;
  p.options.rates = {1e15, 1e12, 1e-6};
  p.params = {square("a", 32768, {p.options.world}, {kR})};
  for (int i = 1; i < 4; ++i) {
    p.params.push_back(p.params[0]);
    p.params.back().name = cat("a", i);
  }
  const Plan plan(p);
  CHECK_FALSE(plan.each_replica());
  CHECK(plan.each_seconds() > plan.once_seconds());
  p.options.replicas = Replicas::kEach;
  try {
    const Plan each(p);
    FAIL("accepted");
  } catch (const Error& e) {
    INFO(e.message());
    CHECK(e.status() == Status::kInvalidArgument);
    CHECK(e.message().find("in every replica") != std::string::npos);
    CHECK(e.message().find("replicas: once or auto") != std::string::npos);
  }
}
