#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"

// Weights that the caller writes after the creation, and parameters that move, through the C ABI.

using Catch::Contains;

namespace {

constexpr int64_t kNumel = 12;
constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kHalf = 0x3f00;  // in bf16

using Weights = std::vector<uint16_t>;

/// A bf16 matrix of one rank, with f32 gradients of 1/2.
struct Half {
  Weights weights;
  std::vector<float> grad = std::vector<float>(kNumel, 0.5f), master;
  muonrt::Comm comm = muonrt::Comm::self();
  muonrt::Optimizer optimizer;

  explicit Half(Weights of, int32_t kind = MUONRT_MASTER_OWNED)
      : weights(std::move(of)), optimizer(make(kind)) {}
  muonrt::Optimizer make(int32_t kind) {
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
    return {comm, muonrt::options(), {muonrt::muon_group()}, {p}};
  }
  muonrt_status_t step() {
    muonrt_step_args_t args = muonrt::step_args();
    args.lr = 0.1;
    return muonrt_optimizer_step(optimizer.get(), &args, nullptr);
  }
};

Weights all(uint16_t bits) { return Weights(kNumel, bits); }
/// In place: the optimizer keeps the address.
void fill(Weights& weights, uint16_t bits) { std::fill(weights.begin(), weights.end(), bits); }

}  // namespace

TEST_CASE("masters: weights written after the creation are refused by name, and taken when asked",
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
  late.optimizer.take_params({0});
  for (int i = 0; i < 3; ++i) {
    REQUIRE(late.step() == MUONRT_OK);
    REQUIRE(known.step() == MUONRT_OK);
  }
  CHECK(late.weights == known.weights);
  CHECK(late.weights != all(kTwo));
}

TEST_CASE("masters: a parameter rounded up or down from its master is its own", "[unit][abi]") {
  for (const float master : {1.0f + 0x1p-8f, 1.0f + 0x1p-9f, 1.0f + 0x1.8p-8f}) {
    for (const uint16_t rounded : {kOne, static_cast<uint16_t>(kOne + 1)}) {
      Half h(all(rounded));
      auto* const at = static_cast<float*>(h.optimizer.state(0, MUONRT_STATE_MASTER).data);
      std::fill_n(at, kNumel, master);
      CHECK(h.step() == MUONRT_OK);
    }
    Half two_off(all(kOne + 2));
    auto* const at = static_cast<float*>(two_off.optimizer.state(0, MUONRT_STATE_MASTER).data);
    std::fill_n(at, kNumel, master);
    CHECK(two_off.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  }
  // One that bf16 holds is not rounded at all.
  Half next(all(kOne));
  next.weights[0] = kOne + 1;
  CHECK(next.step() == MUONRT_ERROR_INVALID_ARGUMENT);
}

TEST_CASE("masters: they are compared again after a resume, and not in every step", "[unit][abi]") {
  Half h(all(kOne));
  REQUIRE(h.step() == MUONRT_OK);
  fill(h.weights, kTwo);
  REQUIRE(h.step() == MUONRT_OK);  // as ever: from the masters
  fill(h.weights, kTwo);
  h.optimizer.set_step(2);
  REQUIRE(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  h.optimizer.take_params();
  CHECK(h.step() == MUONRT_OK);
}

TEST_CASE("masters: remainders become 0, the caller's own masters stay", "[unit][abi]") {
  Half split(all(kOne), MUONRT_MASTER_REMAINDER);
  REQUIRE(split.step() == MUONRT_OK);
  const muonrt_state_view_t view = split.optimizer.state(0, MUONRT_STATE_REMAINDER);
  const auto* const remainder = static_cast<const uint16_t*>(view.data);
  CHECK(Weights(remainder, remainder + kNumel) != all(0));
  fill(split.weights, kTwo);
  split.optimizer.take_params();
  CHECK(Weights(remainder, remainder + kNumel) == all(0));
  CHECK(split.weights == all(kTwo));

  Half callers(all(kOne), MUONRT_MASTER_CALLER);
  fill(callers.weights, kHalf);
  callers.optimizer.take_params();
  CHECK(callers.master == std::vector<float>(kNumel, 1.0f));
  REQUIRE(callers.step() == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("write its master weights, too"));
  callers.master.assign(kNumel, 0.5f);
  CHECK(callers.step() == MUONRT_OK);
}

TEST_CASE("masters: a bad list is refused whole", "[unit][abi]") {
  Half h(all(kOne));
  fill(h.weights, kTwo);
  const int64_t list[] = {0, 1};
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), list, 2) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("take_params: param index is 1"));
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), list, -1) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_reset_masters(h.optimizer.get(), nullptr, 1) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(h.step() == MUONRT_ERROR_INVALID_ARGUMENT);  // nothing was taken
}

TEST_CASE("set_data: a parameter that moves goes on as if it had stayed", "[unit][abi]") {
  for (const int32_t kind : {MUONRT_MASTER_NONE, MUONRT_MASTER_OWNED, MUONRT_MASTER_REMAINDER}) {
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
    // A step writes the new memory: no gradient may lie there.
    CHECK(muonrt_optimizer_set_grad(moved.optimizer.get(), 0, elsewhere.data()) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    elsewhere = all(kTwo);
    moved.optimizer.set_data(0, elsewhere.data());
    CHECK(moved.step() ==
          (kind == MUONRT_MASTER_OWNED ? MUONRT_ERROR_INVALID_ARGUMENT : MUONRT_OK));
  }
}

TEST_CASE("set_data: memory that cannot be a parameter's is refused, the old one stays",
          "[unit][abi]") {
  Half h(all(kOne));
  const auto refused = [&](int64_t param, void* data, const char* why) {
    CHECK(muonrt_optimizer_set_data(h.optimizer.get(), param, data) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains(why));
  };
  refused(0, nullptr, "param 'w': data is null (this rank holds 12 elements)");
  refused(0, h.grad.data() + kNumel - 1, "data overlaps the grad of param 'w' by 4 bytes");
  refused(0, h.optimizer.state(0, MUONRT_STATE_MOMENTUM).data, "overlaps the momentum");
  refused(0, h.optimizer.state(0, MUONRT_STATE_MASTER).data, "overlaps the master");
  refused(0, reinterpret_cast<char*>(h.weights.data()) + 1, "misaligned");
  refused(1, h.weights.data(), "param index is 1");
  h.optimizer.set_data(0, h.weights.data());  // where it lies
  REQUIRE(h.step() == MUONRT_OK);
  CHECK(h.weights != all(kOne));
}

TEST_CASE("skip: a step that is skipped says why, one that overflows by the transport alone too",
          "[unit][abi]") {
  for (const bool overflows : {false, true}) {
    Half h(all(kOne));
    muonrt_group_t group = muonrt::muon_group();
    group.momentum = 0.0;
    group.nesterov = 0;  // the direction is the gradient
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
