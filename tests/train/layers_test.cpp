#include "train/layers.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "train/vector_math.hpp"

using namespace muonrt::train;

TEST_CASE("train exp: the float series is within 3e-7 of the exponential", "[unit][train]") {
  double worst = 0.0;
  for (double x = -87.0; x <= 88.0; x += 0.00137) {
    const float rounded = static_cast<float>(x);
    const double exact = std::exp(static_cast<double>(rounded));
    worst = std::max(worst, std::fabs(double(fast_exp(rounded)) - exact) / exact);
  }
  CHECK(worst < 3e-7);
  CHECK(fast_exp(0.0f) == 1.0f);
  CHECK(fast_exp(-1000.0f) < 1.7e-38f);
  CHECK(fast_exp(-1000.0f) > 0.0f);
  CHECK(std::isfinite(fast_exp(1000.0f)));
  CHECK(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("train softmax: rows add up to one and see nothing to the right", "[unit][train]") {
  for (const int64_t length : {1, 3, 16, 17, 40}) {
    CAPTURE(length);
    std::vector<float> scores(static_cast<size_t>(length * length));
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = float(i % 7) - 3.0f;
    auto poisoned = scores;
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t j = i + 1; j < length; ++j) {
        poisoned[i * length + j] = j % 2 ? 1e30f : std::numeric_limits<float>::quiet_NaN();
      }
    }
    causal_softmax(length, 0.5f, scores.data());
    causal_softmax(length, 0.5f, poisoned.data());
    CHECK(scores == poisoned);
    for (int64_t i = 0; i < length; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < length; ++j) {
        sum += double(scores[i * length + j]);
        if (j > i) CHECK(scores[i * length + j] == 0.0f);
      }
      CHECK(sum == Approx(1.0).margin(1e-6));
    }
    // Entry (i, j) had the score (i * length + j) mod 7 - 3, so the ratio of two is known.
    if (length >= 3) {
      const double ratio = double(scores[2 * length + 1]) / double(scores[2 * length]);
      const double gap = double((2 * length + 1) % 7) - double((2 * length) % 7);
      CHECK(ratio == Approx(std::exp(0.5 * gap)).epsilon(1e-6));
    }
  }
}

TEST_CASE("train cross-entropy: equal logits cost log(vocab)", "[unit][train]") {
  for (const int64_t vocab : {2, 17, 256}) {
    std::vector<float> logits(static_cast<size_t>(vocab), 3.25f);
    CHECK(cross_entropy(vocab, 1, 2.0f, logits.data()) ==
          Approx(std::log(double(vocab))).epsilon(1e-7));
    CHECK(logits[0] == Approx(2.0 / double(vocab)).epsilon(1e-6));
    CHECK(logits[1] == Approx(2.0 / double(vocab) - 2.0).epsilon(1e-6));
  }
}

TEST_CASE("train cross-entropy: a NaN logit gives a NaN loss", "[unit][train]") {
  for (const size_t place : {size_t{0}, size_t{5}, size_t{31}}) {
    std::vector<float> logits(32, 0.5f);
    logits[place] = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(cross_entropy(32, 1, 1.0f, logits.data())));
  }
}
