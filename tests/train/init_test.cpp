#include "train/init.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "train/random.hpp"

using namespace muonrt::train;

namespace {

std::vector<float> whole(const Config& config, uint64_t seed, int64_t index) {
  std::vector<float> values(size_t(param_specs(config)[size_t(index)].elements()));
  init_range(config, seed, index, 0, int64_t(values.size()), values.data());
  return values;
}

}  // namespace

TEST_CASE("train random: Philox gives its published words", "[unit][train]") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("train init: any range has the bits of the whole", "[unit][train]") {
  const Config config = preset("tiny");
  for (int64_t index = 0; index < int64_t(param_specs(config).size()); ++index) {
    const auto values = whole(config, 42, index);
    const auto total = int64_t(values.size());
    for (const int64_t begin : {int64_t{0}, total / 3, total - 1, total}) {
      const int64_t count = std::min<int64_t>(total - begin, 100);
      std::vector<float> part(size_t(count) + 1, -7.0f);
      init_range(config, 42, index, begin, count, part.data());
      CHECK(std::equal(part.begin(), part.end() - 1, values.begin() + begin));
      CHECK(part.back() == -7.0f);
    }
  }
}

TEST_CASE("train init: deviations are as documented and seeds differ", "[unit][train]") {
  const Config config = preset("small");
  const auto specs = param_specs(config);
  for (size_t p = 0; p < specs.size(); ++p) {
    INFO("parameter " << specs[p].name);
    const auto values = whole(config, 1, int64_t(p));
    if (specs[p].role == Role::kVector) {
      CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0f; }));
      continue;
    }
    double sum = 0.0, squares = 0.0;
    for (const float v : values) {
      sum += double(v);
      squares += double(v) * double(v);
    }
    const double count = double(values.size());
    const std::string name = specs[p].name.substr(specs[p].name.find('.') + 1);
    const double width = name == "w_down" ? 512.0 : 128.0;
    double expected = name == "wte" || name == "wpe" ? 0.1
                      : name == "head"               ? 0.02
                                                     : 0.02 * std::sqrt(768.0 / width);
    if (name == "wo" || name == "w_down") expected /= std::sqrt(8.0);
    CHECK(init_deviation(config, int64_t(p)) == Approx(expected));
    // Standard errors are 1 / sqrt(count) and about 0.6 / sqrt(count); five of them.
    CHECK(std::fabs(sum / count) < 5.0 * expected / std::sqrt(count));
    CHECK(std::sqrt(squares / count) == Approx(expected).epsilon(5.0 / std::sqrt(count)));
    CHECK(values != whole(config, 2, int64_t(p)));
  }
  CHECK(whole(config, 1, ParamIndex::layer(0, ParamIndex::kWq)) !=
        whole(config, 1, ParamIndex::layer(0, ParamIndex::kWk)));
}

TEST_CASE("train init: ranges outside a parameter are refused", "[unit][train]") {
  const Config config = preset("tiny");
  float value = 0.0f;
  CHECK_THROWS_WITH(init_range(config, 1, 99, 0, 1, &value), Catch::Contains("99 does not exist"));
  CHECK_THROWS_WITH(init_range(config, 1, 0, 256 * 32, 1, &value),
                    Catch::Contains("'wte'") && Catch::Contains("exceed its 8192"));
  CHECK_THROWS(init_range(config, 1, 0, -1, 1, &value));
}
