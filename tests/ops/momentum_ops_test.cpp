#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "reference/reference.hpp"
#include "support/backends.hpp"

// Tests, on every backend, how momentum and moments decay: without gradients they reach exactly
// zero, and rounding to bf16 has no bias.

using namespace muonrt;

namespace {

constexpr float kLeastNormal = std::numeric_limits<float>::min();  // 2^-126, in f32 and in bf16
constexpr int64_t kFingerprint = 5;

/// A matrix that consists of two blocks. It is part of a wider tensor, so its rows are not
/// contiguous in the tensor.
class Param {
 public:
  static constexpr int64_t kRows = 3, kCols = 37, kApart = 5, kN = kRows * kCols;

  Param(backends::Backend& backend, DType momentum_dtype, bool adam = false)
      : backend_(backend), memory_(backend.memory(sizeof(Tables))) {
    t_ = new (memory_.get()) Tables();
    t_->view.param = floats();
    t_->view.grad = grad = floats();
    t_->view.momentum = floats();
    if (adam) t_->view.variance = floats();
    t_->view.numel = kN;
    t_->view.momentum_dtype = momentum_dtype;
    t_->view.seed = 99;
    t_->sum = {.consent = 1, .fingerprint = kFingerprint};
    message_ = floats();
    for (int64_t row = 0; row < kRows; row += 2) {
      ShardBlock block{};
      block.rows = std::min<int64_t>(2, kRows - row);
      block.cols = block.local_ld = kCols;
      block.local_offset = block.packed_offset = row * kCols;
      block.tensor_index = element_of(row * kCols);
      block.tensor_ld = kCols + kApart;
      block.update_scale = 1.0f;
      blocks_.push_back(block);
    }
  }

  /// Returns the index in the tensor of local element i.
  static int64_t element_of(int64_t i) {
    return (int64_t{1} << 33) + i / kCols * (kCols + kApart) + i % kCols;
  }
  MuonScalars& muon() { return t_->muon; }
  AdamScalars& adam() { return t_->adam; }
  ParamView& view() { return t_->view; }
  float* variance() { return t_->view.variance; }
  float* weight() { return static_cast<float*>(t_->view.param); }

  float momentum(int64_t i) const {
    return t_->view.momentum_dtype == DType::kF32
               ? static_cast<float*>(t_->view.momentum)[i]
               : to_f32(static_cast<bf16*>(t_->view.momentum)[i]);
  }
  void set_momentum(int64_t i, float x) {
    if (t_->view.momentum_dtype == DType::kF32)
      static_cast<float*>(t_->view.momentum)[i] = x;
    else
      static_cast<bf16*>(t_->view.momentum)[i] = to_bf16(x);
  }

  /// Returns the direction that a step would send to the owner, in f32.
  const float* direction() {
    backend_.ops->pack_direction(*backend_.stream, blocks_, tables(),
                                 {.data = message_, .dtype = DType::kF32}, &t_->findings);
    backend_.wait();
    return message_;
  }
  void commit_momentum() {
    backend_.ops->commit_momentum(*backend_.stream, blocks_, tables(), condition());
    backend_.wait();
    ++t_->view.step;
  }
  /// Commits a step of AdamW.
  /// @param by_blocks  If true, passes the blocks; otherwise passes the parameter in the list.
  void commit_adamw(bool by_blocks) {
    const std::vector<int32_t> all = {0};
    const std::span<const int32_t> list(all.data(), by_blocks ? 0 : 1);
    const std::span<const ShardBlock> blocks(blocks_.data(), by_blocks ? blocks_.size() : 0);
    backend_.ops->commit_adamw(*backend_.stream, list, blocks, tables(), condition());
    backend_.wait();
  }

  float* grad = nullptr;

 private:
  struct Tables {
    ParamView view;
    MuonScalars muon;
    AdamScalars adam;
    Vote sum;
    Findings findings;
  };
  float* floats() {
    kept_.push_back(backend_.memory(kN * 4));
    std::memset(kept_.back().get(), 0, kN * 4);
    return static_cast<float*>(kept_.back().get());
  }
  StepTables tables() const { return {&t_->view, &t_->muon, &t_->adam}; }
  CommitCondition condition() const {
    return {.sum = &t_->sum, .world = 1, .fingerprint = kFingerprint, .findings = &t_->findings};
  }

  backends::Backend& backend_;
  std::shared_ptr<void> memory_;
  std::vector<std::shared_ptr<void>> kept_;
  Tables* t_;
  float* message_;
  std::vector<ShardBlock> blocks_;
};

/// Calls check(param, dtype) for every kind of momentum in f32 and in bf16.
template <class Check>
void for_each_kind(backends::Backend& backend, const Check& check) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t kind : {0, 1, 2, 3}) {
      Param param(backend, dtype);
      param.muon() = {.momentum = 0.95f, .heavy_ball = kind / 2, .nesterov = kind % 2};
      INFO(backend.name << ", " << name_of(dtype) << ", heavy ball " << kind / 2 << ", Nesterov "
                        << kind % 2);
      check(param, dtype);
    }
  }
}

/// Sets the gradients to +0 and -0, and the momentum to values of various signs and magnitudes.
void start_small(Param& param) {
  for (int64_t i = 0; i < Param::kN; ++i) {
    param.set_momentum(
        i, std::ldexp(1.0f + static_cast<float>(i % 32) / 32, -120) * (i % 2 ? 1.0f : -1.0f));
    param.grad[i] = i % 3 ? 0.0f : -0.0f;
  }
}

/// Returns the number of steps that reduce an element from 2^-119 to below 2^-126, if each step
/// multiplies it by `rate` and rounds it up by at most `up`.
int steps_to_rest(double rate, double up) {
  return static_cast<int>(std::ceil(7 * std::log(2.0) / -std::log(rate * (1 + up))));
}

void momentum_comes_to_rest(backends::Backend& backend) {
  for_each_kind(backend, [&](Param& param, DType dtype) {
    start_small(param);
    const double up = dtype == DType::kF32 ? 0x1p-23 : 0x1p-7;
    const int steps = steps_to_rest(static_cast<double>(0.95f), up);
    int64_t moving = 0;
    for (int step = 0; step < steps; ++step) {
      std::vector<float> next(Param::kN);
      for (int64_t i = 0; i < Param::kN; ++i) {
        const float decayed = 0.95f * param.momentum(i);
        next[static_cast<size_t>(i)] = std::fabs(decayed) < kLeastNormal ? 0.0f : decayed;
      }
      const float* const sent = param.direction();
      for (size_t i = 0; i < next.size(); ++i)
        REQUIRE(sent[i] == (param.muon().nesterov ? 0.95f * next[i] : next[i]));
      param.commit_momentum();
      moving = 0;
      for (int64_t i = 0; i < Param::kN; ++i) {
        const float m = param.momentum(i), expected = next[static_cast<size_t>(i)];
        if (dtype == DType::kF32) REQUIRE(m == expected);
        REQUIRE((m == 0.0f) == (expected == 0.0f));
        REQUIRE((m == 0.0f || std::fabs(m) >= kLeastNormal));
        moving += m != 0.0f;
      }
      if (step == steps / 2) REQUIRE(moving > 0);
    }
    REQUIRE(moving == 0);
  });
}

/// Checks that subnormal momentum is not set to zero while there is a gradient.
void small_gradients_move(backends::Backend& backend) {
  for (const float g : {1e-36f, 1e-40f, -1e-40f, 0x1p-149f}) {
    for_each_kind(backend, [&](Param& param, DType dtype) {
      for (int64_t i = 0; i < Param::kN; ++i) param.grad[i] = g;
      const MuonScalars s = param.muon();
      const float added = s.heavy_ball ? g : (1.0f - 0.95f) * g;
      float m = 0.0f;
      for (int step = 0; step < 4; ++step) {
        m = 0.95f * m + added;
        const float* const sent = param.direction();
        if (step == 0) {
          const float first = s.nesterov ? added + 0.95f * m : m;
          for (int64_t i = 0; i < Param::kN; ++i) REQUIRE(sent[i] == first);
        }
        param.commit_momentum();
        for (int64_t i = 0; i < Param::kN; ++i) {
          // In bf16, the result of each step may be off by one representable value.
          const float off =
              dtype == DType::kF32 ? 0.0f : 4 * std::max(0x1p-133f, std::fabs(m) / 128);
          REQUIRE(std::fabs(param.momentum(i) - m) <= off);
        }
      }
    });
  }
}

void moments_come_to_rest(backends::Backend& backend) {
  for (const bool by_blocks : {false, true}) {
    for (const float g : {0.0f, 1e-25f}) {
      INFO(backend.name << (by_blocks ? ", blocks" : ", whole") << ", gradient " << g);
      Param param(backend, DType::kF32, true);
      start_small(param);
      param.adam() = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 0.0f, .rate = 0.5f};
      for (int64_t i = 0; i < Param::kN; ++i) {
        param.variance()[i] = std::fabs(param.momentum(i));
        if (g != 0.0f) param.grad[i] = g;
      }
      const int steps = steps_to_rest(static_cast<double>(0.95f), 0x1p-23);
      for (int step = 0; step < steps; ++step) {
        std::vector<float> m(Param::kN), v(Param::kN);
        for (int64_t i = 0; i < Param::kN; ++i) {
          const auto at = static_cast<size_t>(i);
          m[at] = 0.9f * param.momentum(i) + (1.0f - 0.9f) * g;
          v[at] = 0.95f * param.variance()[i] + (1.0f - 0.95f) * (g * g);
          if (g == 0.0f && std::fabs(m[at]) < kLeastNormal) m[at] = 0.0f;
          if (g == 0.0f && v[at] < kLeastNormal) v[at] = 0.0f;
        }
        param.commit_adamw(by_blocks);
        for (int64_t i = 0; i < Param::kN; ++i) {
          REQUIRE(param.momentum(i) == m[static_cast<size_t>(i)]);
          REQUIRE(param.variance()[i] == v[static_cast<size_t>(i)]);
        }
      }
      std::vector<float> before(param.weight(), param.weight() + Param::kN);
      for (int64_t i = 0; i < Param::kN && g == 0.0f; ++i) {
        REQUIRE(param.momentum(i) == 0.0f);
        REQUIRE(param.variance()[i] == 0.0f);
      }
      param.commit_adamw(by_blocks);
      for (size_t i = 0; i < before.size(); ++i)
        REQUIRE((param.weight()[i] == before[i]) == (g == 0.0f));
    }
  }
}

/// Checks that the stored value is the f32 value, rounded with random bits. These bits depend on
/// the seed, the step, the parameter's key and the index in the tensor. They differ from the random
/// bits for weights.
void momentum_is_rounded_by_place(backends::Backend& backend) {
  for_each_kind(backend, [&](Param& param, DType dtype) {
    if (dtype == DType::kF32) return;
    const MuonScalars s = param.muon();
    param.view().key = 3;
    for (int64_t i = 0; i < Param::kN; ++i)
      param.grad[i] = std::sin(static_cast<float>(i)) * (i % 7 ? 1.0f : 1e-30f);
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<float> next(Param::kN);
      for (int64_t i = 0; i < Param::kN; ++i)
        next[static_cast<size_t>(i)] =
            0.95f * param.momentum(i) + (s.heavy_ball ? 1.0f : 1.0f - 0.95f) * param.grad[i];
      param.commit_momentum();
      int64_t as_weights = 0;
      for (int64_t i = 0; i < Param::kN; ++i) {
        const auto rounded = [&](uint64_t seed) {
          return reference::rounded_at_random(
              static_cast<double>(next[static_cast<size_t>(i)]),
              reference::random_bits(seed, step, 3, static_cast<uint64_t>(Param::element_of(i))));
        };
        const auto stored = static_cast<double>(param.momentum(i));
        REQUIRE(stored == rounded(99 ^ reference::kMomentumSeed));
        as_weights += stored == rounded(99);
      }
      REQUIRE(as_weights < Param::kN);
    }
  });
}

/// Checks the mean of a momentum that starts at 1 (its limit with gradients of 1) and then receives
/// gradients of -1. The exact value after k steps is 2 mu^k - 1. Each rounding error is less than
/// 2^-8 (the distance between adjacent bf16 values just below 1). The error has mean zero and a
/// variance of at most a quarter of 2^-16, and each later step multiplies the error by mu. The mean
/// over n elements therefore has a standard deviation below 2^-9 / sqrt((1 - mu^2) n).
void turning_momentum_has_no_bias(backends::Backend& backend) {
  for (const float mu : {0.99f, 0.998f}) {
    INFO(backend.name << ", momentum " << mu);
    Param param(backend, DType::kBF16);
    param.muon() = {.momentum = mu, .heavy_ball = 0, .nesterov = 0};
    for (int64_t i = 0; i < Param::kN; ++i) {
      param.set_momentum(i, 1.0f);
      param.grad[i] = -1.0f;
    }
    const double m = static_cast<double>(mu);
    const int steps = static_cast<int>(3 / (1 - m));
    double exact = 1.0;
    for (int step = 0; step < steps; ++step) {
      param.commit_momentum();
      exact = m * exact - (1 - m);
    }
    double mean = 0;
    for (int64_t i = 0; i < Param::kN; ++i)
      mean += static_cast<double>(param.momentum(i)) / Param::kN;
    const double deviation = 0x1p-9 / std::sqrt((1 - m * m) * Param::kN);
    CHECK(std::fabs(mean - exact) < 5 * deviation);
  }
}

}  // namespace

TEST_CASE("momentum: without gradients momentum and moments become exactly zero",
          "[ops][momentum]") {
  for (auto& backend : backends::all()) {
    momentum_comes_to_rest(backend);
    moments_come_to_rest(backend);
  }
}

TEST_CASE("momentum: gradients below the normal numbers move momentum", "[ops][momentum]") {
  for (auto& backend : backends::all()) small_gradients_move(backend);
}

TEST_CASE("momentum: stochastic rounding of bf16 momentum depends on the index in the tensor",
          "[ops][momentum]") {
  for (auto& backend : backends::all()) momentum_is_rounded_by_place(backend);
}

TEST_CASE("momentum: bf16 momentum has no bias after its gradients have changed sign",
          "[ops][momentum]") {
  for (auto& backend : backends::all()) turning_momentum_has_no_bias(backend);
}
