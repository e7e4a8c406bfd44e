#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"

// Tests weights that the caller writes after creating the optimizer, and parameters that get new
// buffers.

using Catch::Contains;

namespace {

constexpr int64_t kNumel = 12;
constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kHalf = 0x3f00;  // in bf16

using Weights = std::vector<uint16_t>;

/// An optimizer of a bf16 matrix on one rank, with f32 gradients of 1/2.
struct Half {
  Weights weights;
  std::vector<float> grad = std::vector<float>(kNumel, 0.5f), master;
  muonrt::Comm comm = muonrt::Comm::self();
  muonrt::Optimizer optimizer;

  explicit Half(Weights of, muonrt_master_kind_t kind = MUONRT_MASTER_OWNED,
                const muonrt_group_t& group = muonrt::muon_group())
      : weights(std::move(of)), optimizer(make(kind, group)) {}
  muonrt::Optimizer make(muonrt_master_kind_t kind, const muonrt_group_t& group) {
    static const int64_t shape[] = {3, 4};
    muonrt_param_t p = muonrt::param();
    p.name = "w";
    p.ndim = 2;
    p.shape = shape;
    p.dtype = MUONRT_DTYPE_BF16;
    p.data = weights.data();
    p.grad = grad.data();
    p.grad_dtype = MUONRT_DTYPE_F32;
    p.master_kind = kind;
    if (kind == MUONRT_MASTER_CALLER) {
      master.assign(kNumel, 1.0f);
      p.master = master.data();
    }
    return {comm, muonrt::options(), {group}, {p}};
  }
  muonrt_status_t step(const std::vector<int64_t>& inactive = {}) {
    muonrt_step_args_t args = muonrt::step_args();
    args.lr = 0.1;
    args.inactive_params = inactive.data();
    args.n_inactive_params = static_cast<int64_t>(inactive.size());
    return muonrt_optimizer_step(nullptr, optimizer.get(), &args);
  }
  /// Returns the state of this kind, which is a single shard.
  void* state(muonrt_state_kind_t kind) {
    for (const muonrt_state_shard_t& shard : optimizer.state_shards()) {
      if (shard.kind == kind) return shard.data;
    }
    return nullptr;
  }
};

Weights all(uint16_t bits) { return Weights(kNumel, bits); }
/// Writes all values without moving the buffer, because the optimizer keeps its address.
void fill(Weights& weights, uint16_t bits) { std::fill(weights.begin(), weights.end(), bits); }

}  // namespace

TEST_CASE("masters: a step rejects weights that were written, until the masters are reset",
          "[unit][abi]") {
  Half late(all(kOne)), known(all(kTwo));
  fill(late.weights, kTwo);
  late.weights[0] = kOne;
  REQUIRE(late.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  const std::string said = muonrt_get_last_error();
  CHECK_THAT(said, Contains("param 'w': local element 1 is 2, but its master weight is 1"));
  CHECK_THAT(said, Contains("call muonrt_optimizer_reset_masters"));
  CHECK(late.weights[1] == kTwo);
  late.weights[0] = kTwo;
  late.optimizer.reset_masters({0});
  for (int i = 0; i < 3; ++i) {
    REQUIRE(late.step() == MUONRT_OK);
    REQUIRE(known.step() == MUONRT_OK);
  }
  CHECK(late.weights == known.weights);
  CHECK(late.weights != all(kTwo));
}

TEST_CASE("masters: a parameter may be its master rounded up or down", "[unit][abi]") {
  for (const float master : {1.0f + 0x1p-8f, 1.0f + 0x1p-9f, 1.0f + 0x1.8p-8f}) {
    for (const uint16_t rounded : {kOne, static_cast<uint16_t>(kOne + 1)}) {
      Half h(all(rounded));
      auto* const at = static_cast<float*>(h.state(MUONRT_STATE_MASTER));
      std::fill_n(at, kNumel, master);
      CHECK(h.step() == MUONRT_OK);
    }
    Half two_off(all(kOne + 2));
    auto* const at = static_cast<float*>(two_off.state(MUONRT_STATE_MASTER));
    std::fill_n(at, kNumel, master);
    CHECK(two_off.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  }
  // If bf16 can represent the master weight exactly, no other weight is accepted.
  Half next(all(kOne));
  next.weights[0] = kOne + 1;
  CHECK(next.step() == MUONRT_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("masters: a step rejects weights that differ in one bit from those of the last step",
          "[unit][abi]") {
  for (const muonrt_group_t& group : {muonrt::muon_group(), muonrt::adamw_group()}) {
    for (const muonrt_master_kind_t kind : {MUONRT_MASTER_OWNED, MUONRT_MASTER_CALLER}) {
      Half h(all(kOne), kind, group), undisturbed(all(kOne), kind, group);
      const auto agree = [&] {
        REQUIRE(h.step() == MUONRT_OK);
        REQUIRE(undisturbed.step() == MUONRT_OK);
        CHECK(h.weights == undisturbed.weights);
      };
      agree();
      REQUIRE(h.weights != all(kOne));
      for (const int bit : {0, 1, 15}) {
        const Weights before = h.weights;
        h.weights[7] ^= static_cast<uint16_t>(1 << bit);
        const Weights written = h.weights;
        CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);
        CHECK_THAT(muonrt_get_last_error(), Contains("param 'w': local element 7 is "));
        CHECK(h.weights == written);
        h.weights = before;
        agree();
      }
      // The master weight, rounded in the other direction, would be one of the two adjacent values.
      // Both must be rejected.
      for (const int by : {-1, 1}) {
        const uint16_t before = h.weights[11];
        h.weights[11] = static_cast<uint16_t>(before + by);
        CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);
        h.weights[11] = before;
      }
      h.grad[0] = undisturbed.grad[0] = std::numeric_limits<float>::quiet_NaN();
      CHECK(h.step() == MUONRT_SKIPPED);
      h.grad[0] = undisturbed.grad[0] = 0.5f;
      agree();
    }
  }
}

TEST_CASE("masters: written weights outlast steps in which their parameter is inactive",
          "[unit][abi]") {
  Half h(all(kOne));
  REQUIRE(h.step() == MUONRT_OK);
  fill(h.weights, kTwo);
  REQUIRE(h.step({0}) == MUONRT_OK);
  CHECK(h.weights == all(kTwo));
  CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  h.optimizer.set_step(2);
  CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(h.weights == all(kTwo));
  h.optimizer.reset_masters();
  CHECK(h.step() == MUONRT_OK);
}

TEST_CASE("masters: a reset sets remainders to 0 and leaves the caller's masters unchanged",
          "[unit][abi]") {
  Half split(all(kOne), MUONRT_MASTER_REMAINDER);
  REQUIRE(split.step() == MUONRT_OK);
  const auto* const remainder = static_cast<const uint16_t*>(split.state(MUONRT_STATE_REMAINDER));
  CHECK(Weights(remainder, remainder + kNumel) != all(0));
  fill(split.weights, kTwo);
  split.optimizer.reset_masters();
  CHECK(Weights(remainder, remainder + kNumel) == all(0));
  CHECK(split.weights == all(kTwo));

  Half callers(all(kOne), MUONRT_MASTER_CALLER);
  fill(callers.weights, kHalf);
  callers.optimizer.reset_masters();
  CHECK(callers.master == std::vector<float>(kNumel, 1.0f));
  REQUIRE(callers.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("write its master weights, too"));
  callers.master.assign(kNumel, 0.5f);
  CHECK(callers.step() == MUONRT_OK);
}

TEST_CASE("masters: an invalid list of parameters changes nothing", "[unit][abi]") {
  Half h(all(kOne));
  fill(h.weights, kTwo);
  const int64_t list[] = {0, 1};
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), list, 2) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("reset_masters: param index is 1"));
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), list, -1) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), nullptr, 1) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);  // no master weight was reset
}

TEST_CASE("set_data: a parameter with a new buffer steps as with the old one", "[unit][abi]") {
  for (const muonrt_master_kind_t kind :
       {MUONRT_MASTER_NONE, MUONRT_MASTER_OWNED, MUONRT_MASTER_REMAINDER}) {
    Half moved(all(kOne), kind), stayed(all(kOne), kind);
    REQUIRE(moved.step() == MUONRT_OK);
    REQUIRE(stayed.step() == MUONRT_OK);
    Weights elsewhere = moved.weights;
    moved.optimizer.set_data(0, elsewhere.data());
    const Weights before = moved.weights;
    fill(moved.weights, kHalf);
    REQUIRE(moved.step() == MUONRT_OK);
    REQUIRE(stayed.step() == MUONRT_OK);
    CHECK(elsewhere == stayed.weights);
    CHECK(elsewhere != before);
    CHECK(moved.weights == all(kHalf));
    // Steps now write to the new buffer, so a gradient must not overlap it.
    CHECK(muonrt_optimizer_set_grad(moved.optimizer.get(), 0, elsewhere.data()) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    elsewhere = all(kTwo);
    moved.optimizer.set_data(0, elsewhere.data());
    CHECK(moved.step() ==
          (kind == MUONRT_MASTER_OWNED ? MUONRT_ERROR_INVALID_ARGUMENT : MUONRT_OK));
  }
}

TEST_CASE("set_data: an invalid buffer is rejected, and the old one remains bound", "[unit][abi]") {
  Half h(all(kOne));
  const auto check_error = [&](int64_t param, void* data, const char* why) {
    CHECK(muonrt_optimizer_set_data(h.optimizer.get(), param, data) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains(why));
  };
  check_error(0, nullptr, "param 'w': data is NULL, but this rank holds 12 elements");
  check_error(0, h.grad.data() + kNumel - 1, "data overlaps the grad of param 'w' by 4 bytes");
  check_error(0, h.state(MUONRT_STATE_MOMENTUM), "overlaps the momentum");
  check_error(0, h.state(MUONRT_STATE_MASTER), "overlaps the master");
  check_error(0, reinterpret_cast<char*>(h.weights.data()) + 1, "misaligned");
  check_error(1, h.weights.data(), "param index is 1");
  h.optimizer.set_data(0, h.weights.data());  // binds the same buffer as before
  REQUIRE(h.step() == MUONRT_OK);
  CHECK(h.weights != all(kOne));
}

TEST_CASE("skip: a skipped step reports its reason, also if only transport_dtype overflows",
          "[unit][abi]") {
  for (const bool overflows : {false, true}) {
    Half h(all(kOne));
    muonrt_group_t group = muonrt::muon_group();
    group.momentum = 0.0;
    group.nesterov = 0;  // so that the first direction is a multiple of the gradient
    h.optimizer.set_group(0, group);
    h.grad[3] = overflows ? 3.4e38f : std::numeric_limits<float>::quiet_NaN();
    const muonrt_step_report_t report = h.optimizer.step(0.1);
    const std::string said = muonrt_get_last_error();
    CHECK(report.skipped == 1);
    CHECK(report.transport_overflow == (overflows ? 1 : 0));
    CHECK_THAT(said, Contains("param 'w': "));
    CHECK_THAT(said, Contains(overflows ? "overflows transport_dtype bf16" : "is not finite"));
    CHECK(h.weights == all(kOne));
  }
}
