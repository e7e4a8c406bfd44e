// Tests state shards and update counts through the C ABI.

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "support/numerics/noise.hpp"

using Catch::Contains;
using test_support::noise;

namespace {

constexpr int64_t kRows = 24, kCols = 10, kCount = kRows * kCols;

/// An optimizer of a bf16 matrix on one rank, with f32 gradients.
class Matrix {
 public:
  explicit Matrix(int32_t master_kind, int32_t normuon = MUONRT_NORMUON_OFF) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const float w = noise(static_cast<int64_t>(i));
      uint32_t bits;
      std::memcpy(&bits, &w, sizeof bits);
      weights[i] = static_cast<uint16_t>(bits >> 16);
    }
    REQUIRE(muonrt_comm_create_self(&comm_) == MUONRT_OK);
    muonrt_group_t group;
    muonrt_group_init_muon(&group);
    group.normuon_axis = normuon;
    const int64_t shape[] = {kRows, kCols};
    muonrt_param_t param;
    muonrt_param_init(&param);
    param.name = "w";
    param.ndim = 2;
    param.shape = shape;
    param.dtype = MUONRT_DTYPE_BF16;
    param.data = weights.data();
    param.grad = grad_.data();
    param.grad_dtype = MUONRT_DTYPE_F32;
    param.master_kind = master_kind;
    REQUIRE(muonrt_optimizer_create(&optimizer, comm_, nullptr, &group, 1, &param, 1) == MUONRT_OK);
  }
  ~Matrix() {
    muonrt_optimizer_destroy(optimizer);
    muonrt_comm_destroy(comm_);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  muonrt_status_t step(int64_t number, const int64_t* inactive = nullptr) {
    for (size_t i = 0; i < grad_.size(); ++i)
      grad_[i] = noise(kCount * (number + 1) + static_cast<int64_t>(i));
    muonrt_step_args_t args;
    muonrt_step_args_init(&args);
    args.lr = 0.01;
    args.inactive_params = inactive;
    args.n_inactive_params = inactive ? 1 : 0;
    return muonrt_optimizer_step(nullptr, optimizer, &args);
  }
  std::vector<muonrt_state_shard_t> shards() {
    int64_t n = -1;
    REQUIRE(muonrt_optimizer_get_state_shards(nullptr, 0, &n, optimizer) == MUONRT_OK);
    std::vector<muonrt_state_shard_t> out(static_cast<size_t>(n));
    for (muonrt_state_shard_t& shard : out) muonrt_state_shard_init(&shard);
    REQUIRE(muonrt_optimizer_get_state_shards(out.data(), n, &n, optimizer) == MUONRT_OK);
    return out;
  }
  /// Returns the data of the only shard of this kind. The shard must hold the whole parameter.
  const void* state(enum muonrt_state_kind kind) {
    const void* data = nullptr;
    for (const muonrt_state_shard_t& shard : shards()) {
      if (shard.kind != kind) continue;
      REQUIRE(data == nullptr);
      REQUIRE(shard.end - shard.begin == kCount);
      data = shard.data;
    }
    REQUIRE(data != nullptr);
    return data;
  }

  muonrt_optimizer_t* optimizer = nullptr;
  std::array<uint16_t, kCount> weights{};

 private:
  muonrt_comm_t* comm_ = nullptr;
  std::array<float, kCount> grad_{};
};

}  // namespace

TEST_CASE("state: parameter and remainder give the f32 weight by the formula of the header",
          "[unit][abi]") {
  Matrix split(MUONRT_MASTER_REMAINDER), whole(MUONRT_MASTER_OWNED);
  for (int step = 0; step < 5; ++step) {
    REQUIRE(split.step(step) == MUONRT_OK);
    REQUIRE(whole.step(step) == MUONRT_OK);
  }
  const auto* remainder = static_cast<const uint16_t*>(split.state(MUONRT_STATE_REMAINDER));
  const auto* master = static_cast<const float*>(whole.state(MUONRT_STATE_MASTER));
  int64_t wrong = 0, wrong_side_by_side = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const uint16_t param = split.weights[static_cast<size_t>(i)];
    const uint32_t joined = (static_cast<uint32_t>(param) << 16) +
                            static_cast<uint32_t>(static_cast<int16_t>(remainder[i]));
    uint32_t bits;
    std::memcpy(&bits, &master[i], sizeof bits);
    wrong += joined != bits;
    wrong_side_by_side += (static_cast<uint32_t>(param) << 16 | remainder[i]) != bits;
  }
  CHECK(wrong == 0);
  CHECK(wrong_side_by_side > kCount / 4);  // otherwise the test could not detect a wrong formula
}

TEST_CASE("state: each kind of state that exists has one shard on one rank", "[unit][abi]") {
  Matrix m(MUONRT_MASTER_OWNED, MUONRT_NORMUON_ROWS);
  std::vector<int32_t> kinds;
  for (const muonrt_state_shard_t& shard : m.shards()) {
    kinds.push_back(shard.kind);
    const bool neurons = shard.kind == MUONRT_STATE_NORMUON;
    CHECK(shard.param == 0);
    CHECK(shard.ndim == (neurons ? 1 : 2));
    CHECK(shard.shape[0] == kRows);
    CHECK(shard.begin == 0);
    CHECK(shard.end == (neurons ? kRows : kCount));
    CHECK(shard.data != nullptr);
  }
  CHECK(kinds ==
        std::vector<int32_t>{MUONRT_STATE_MOMENTUM, MUONRT_STATE_MASTER, MUONRT_STATE_NORMUON});
  int64_t n = -1;
  CHECK(muonrt_optimizer_get_state_shards(nullptr, -1, &n, m.optimizer) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Contains("capacity is -1"));
}

TEST_CASE("state: AdamW uses the update count of a parameter, not the number of steps",
          "[unit][abi]") {
  // The parameter is a single weight with gradient g = 1. With beta1 = 0, its update is g / (sqrt(v
  // / (1 - beta2^t)) + eps).
  constexpr double kLr = 0.01, kBeta2 = 0.999;
  constexpr int64_t kSteps = 2000;
  const auto moved = [&](int64_t updates, float variance) {
    float weight = 1.0f;
    const float grad = 1.0f;
    muonrt_group_t group = muonrt::adamw_group();
    group.beta1 = 0;
    group.beta2 = kBeta2;
    group.weight_decay = 0;
    muonrt_param_t param = muonrt::param();
    const int64_t shape[] = {1};
    param.name = "w";
    param.ndim = 1;
    param.shape = shape;
    param.data = &weight;
    param.grad = &grad;
    const muonrt::Comm comm = muonrt::Comm::self();
    muonrt::Optimizer o(comm, muonrt::options(), {group}, {param});
    o.set_step(kSteps);
    CHECK(o.update_count(0) == kSteps);
    if (updates >= 0) o.set_update_count(0, updates);
    for (const muonrt_state_shard_t& shard : o.state_shards())
      if (shard.kind == MUONRT_STATE_VARIANCE) *static_cast<float*>(shard.data) = variance;
    o.step(kLr);
    CHECK(o.update_count(0) == (updates >= 0 ? updates : kSteps) + 1);
    CHECK(o.steps() == kSteps + 1);
    return 1.0 - double{weight};
  };
  // After two updates with gradient 1, the variance is 1 - beta2^2, so the third update is 1 again.
  const auto two = static_cast<float>(1 - kBeta2 * kBeta2);
  CHECK(moved(2, two) == Approx(kLr).epsilon(1e-3));
  const double wrong =
      kLr * std::sqrt((1 - std::pow(kBeta2, kSteps + 1.0)) / (1 - std::pow(kBeta2, 3)));
  CHECK(wrong > 10 * kLr);
  CHECK(moved(-1, two) == Approx(wrong).epsilon(1e-3));
  // With an update count of 0 and a variance of 0, the parameter starts again as in the first step.
  CHECK(moved(0, 0.0f) == Approx(kLr).epsilon(1e-3));
}

TEST_CASE("state: an invalid update count or parameter index is rejected", "[unit][abi]") {
  Matrix m(MUONRT_MASTER_NONE);
  int64_t updates = -1;
  CHECK(muonrt_optimizer_get_update_count(&updates, m.optimizer, 0) == MUONRT_OK);
  CHECK(updates == 0);
  for (const int64_t bad : {int64_t{-1}, (int64_t{1} << 53) + 1}) {
    CHECK(muonrt_optimizer_set_update_count(m.optimizer, 0, bad) == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Contains("param 'w': updates is " + std::to_string(bad)));
  }
  CHECK(muonrt_optimizer_set_update_count(m.optimizer, 1, 0) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_get_update_count(&updates, m.optimizer, -1) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(muonrt_optimizer_get_update_count(nullptr, m.optimizer, 0) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE(m.step(0) == MUONRT_OK);
  const int64_t inactive = 0;
  REQUIRE(m.step(1, &inactive) == MUONRT_OK);
  CHECK(muonrt_optimizer_get_update_count(&updates, m.optimizer, 0) == MUONRT_OK);
  CHECK(updates == 1);
}
