#include "train/model/layers.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

using muonrt::train::Layers;

TEST_CASE("train layers: a softmax in float is within 5e-7 of the exponential", "[unit][train]") {
  for (double x = -87.0; x <= 0.0; x += 0.00137) {
    std::vector<float> scores = {0.0f, 0.0f, static_cast<float>(x), 0.0f};  // a 2 x 2 matrix
    const double exact = std::exp(static_cast<double>(scores[2]));
    Layers::causal_softmax(2, 1.0f, scores.data());
    REQUIRE(double(scores[2]) / double(scores[3]) == Approx(exact).epsilon(5e-7));
  }
}

TEST_CASE("train layers: a softmax sees nothing right of the diagonal", "[unit][train]") {
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
    Layers::causal_softmax(length, 0.5f, scores.data());
    Layers::causal_softmax(length, 0.5f, poisoned.data());
    CHECK(scores == poisoned);
    for (int64_t i = 0; i < length; ++i) {
      double sum = 0.0;
      for (int64_t j = 0; j < length; ++j) sum += double(scores[i * length + j]);
      CHECK(sum == Approx(1.0).margin(1e-6));
    }
  }
}

TEST_CASE("train layers: a NaN logit gives a NaN loss", "[unit][train]") {
  for (const size_t place : {size_t{0}, size_t{5}, size_t{31}}) {
    std::vector<float> logits(32, 0.5f);
    logits[place] = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(Layers::cross_entropy(32, 1, 1.0f, logits.data())));
  }
}
