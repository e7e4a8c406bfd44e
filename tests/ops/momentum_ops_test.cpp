#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "reference/reference.hpp"
#include "support/backends.hpp"

// How momentum and moments decay on a backend: to exactly zero without gradients, and without bias
// when they are stored as bf16.

using namespace muonrt;

namespace {

constexpr float kLeastNormal = std::numeric_limits<float>::min();  // 2^-126, of f32 and of bf16
constexpr int64_t kFingerprint = 5;

/// A matrix of rows x cols in two pieces, which lie apart in a tensor that is wider.
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
      pieces_.push_back(block);
    }
  }

  /// Index in the tensor of local element i.
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

  /// The direction that would be sent, in f32.
  const float* direction() {
    backend_.ops->pack_direction(*backend_.stream, pieces_, tables(),
                                 {.data = message_, .dtype = DType::kF32}, &t_->findings);
    backend_.wait();
    return message_;
  }
  void commit_momentum() {
    backend_.ops->commit_momentum(*backend_.stream, pieces_, tables(), vote_sum());
    backend_.wait();
    ++t_->view.step;
  }
  /// @param by_pieces  else by the whole list.
  void commit_adamw(bool by_pieces) {
    const std::vector<int32_t> all = {0};
    const std::span<const int32_t> list(all.data(), by_pieces ? 0 : 1);
    const std::span<const ShardBlock> blocks(pieces_.data(), by_pieces ? pieces_.size() : 0);
    backend_.ops->commit_adamw(*backend_.stream, list, blocks, tables(), vote_sum());
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
  CommitCondition vote_sum() const {
    return {.sum = &t_->sum, .world = 1, .fingerprint = kFingerprint, .findings = &t_->findings};
  }

  backends::Backend& backend_;
  std::shared_ptr<void> memory_;
  std::vector<std::shared_ptr<void>> kept_;
  Tables* t_;
  float* message_;
  std::vector<ShardBlock> pieces_;
};

/// The kinds of momentum, in both dtypes: check(param, dtype).
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

/// Both gradients that are zero, and a sign and a magnitude for every element.
void start_small(Param& param) {
  for (int64_t i = 0; i < Param::kN; ++i) {
    param.set_momentum(
        i, std::ldexp(1.0f + static_cast<float>(i % 32) / 32, -120) * (i % 2 ? 1.0f : -1.0f));
    param.grad[i] = i % 3 ? 0.0f : -0.0f;
  }
}

/// From below 2^-119 an element that shrinks to `rate` of itself, rounded up by `up` at most, is
/// below 2^-126 after so many steps.
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
        const float m = param.momentum(i), wanted = next[static_cast<size_t>(i)];
        if (dtype == DType::kF32) REQUIRE(m == wanted);
        REQUIRE((m == 0.0f) == (wanted == 0.0f));
        REQUIRE((m == 0.0f || std::fabs(m) >= kLeastNormal));
        moving += m != 0.0f;
      }
      if (step == steps / 2) REQUIRE(moving > 0);
    }
    REQUIRE(moving == 0);
  });
}

/// What a gradient holds is no rest: subnormal momentum stays while there is one.
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
          // One bf16 below or above, in each step.
          const float off =
              dtype == DType::kF32 ? 0.0f : 4 * std::max(0x1p-133f, std::fabs(m) / 128);
          REQUIRE(std::fabs(param.momentum(i) - m) <= off);
        }
      }
    });
  }
}

void moments_come_to_rest(backends::Backend& backend) {
  for (const bool by_pieces : {false, true}) {
    for (const float g : {0.0f, 1e-25f}) {
      INFO(backend.name << (by_pieces ? ", pieces" : ", whole") << ", gradient " << g);
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
        param.commit_adamw(by_pieces);
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
      param.commit_adamw(by_pieces);
      for (size_t i = 0; i < before.size(); ++i)
        REQUIRE((param.weight()[i] == before[i]) == (g == 0.0f));
    }
  }
}

/// What is stored is the f32 value, rounded by bits that follow from the seed, the step, the
/// parameter's key and the element in the tensor, and that are not those of a weight there.
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

/// Momentum that has settled on gradients of 1 turns to gradients of -1. The exact value after k
/// steps is 2 mu^k - 1. Each rounding errs by less than a step of bf16 below 1 (2^-8), on average
/// by nothing, with a variance of a quarter of its square at most; errors decay by mu. So the mean
/// over n elements has a standard deviation below 2^-9 / sqrt((1 - mu^2) n).
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

TEST_CASE("momentum: bf16 momentum is rounded at random by its place in the tensor",
          "[ops][momentum]") {
  for (auto& backend : backends::all()) momentum_is_rounded_by_place(backend);
}

TEST_CASE("momentum: bf16 momentum has no bias after its gradients have turned",
          "[ops][momentum]") {
  for (auto& backend : backends::all()) turning_momentum_has_no_bias(backend);
}
