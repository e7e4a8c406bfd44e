#include <catch2/catch.hpp>
#include <cfenv>
#include <clocale>
#include <locale>

#include "muonrt/muonrt.h"
#include "support/bits_cases.hpp"
#include "support/faults/flush_to_zero.hpp"

// Programs that embed muonrt bring their own floating-point environment and locale. Neither changes
// a bit of ours, and both are as before after every call.

namespace {

constexpr int64_t kRows = 24, kCols = 40;

// Values with many denormal products: what flush-to-zero would change.
std::vector<float> filled(int64_t salt, float scale) {
  std::vector<float> out(kRows * kCols);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = scale * world::value(salt, static_cast<int64_t>(i), 0);
  }
  return out;
}

struct Result {
  std::vector<float> matrix, vector, momentum;
  std::string plan;
  bool operator==(const Result&) const = default;
};

void require(muonrt_status_t status) {
  if (status != MUONRT_OK) FAIL(muonrt_last_error());
}

/// Made before a test changes the environment: the test's own arithmetic follows it.
struct Inputs {
  std::vector<float> matrix = filled(1, 1.0f), vector = filled(2, 1e-20f);
  std::vector<float> grad = filled(3, 1e-37f), small = filled(4, 1e-21f);
};

Result run(const Inputs& inputs) {
  Result out{inputs.matrix, inputs.vector, {}, {}};
  const std::vector<float>&grad = inputs.grad, &small = inputs.small;
  const int64_t shape[2] = {kRows, kCols}, length = kRows * kCols;
  muonrt_comm_t* comm = nullptr;
  require(muonrt_comm_create_self(&comm));
  muonrt_group_t groups[2];
  muonrt_group_init(&groups[0], MUONRT_ROLE_MUON);
  muonrt_group_init(&groups[1], MUONRT_ROLE_ADAMW);
  muonrt_param_t params[2];
  for (int i = 0; i < 2; ++i) {
    muonrt_param_init(&params[i]);
    params[i].name = i == 0 ? "matrix" : "vector";
    params[i].group = i;
    params[i].ndim = i == 0 ? 2 : 1;
    params[i].shape = i == 0 ? shape : &length;
    params[i].data = i == 0 ? out.matrix.data() : out.vector.data();
    params[i].grad = i == 0 ? grad.data() : small.data();
  }
  muonrt_optimizer_options_t options;
  muonrt_optimizer_options_init(&options);
  options.threads = 2;
  options.transport_dtype = MUONRT_DTYPE_F32;
  muonrt_optimizer_t* optimizer = nullptr;
  require(muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2));
  for (int step = 0; step < 3; ++step) {
    muonrt_step_t args;
    muonrt_step_init(&args);
    args.lr = 1e-3 / 3;
    require(muonrt_optimizer_step(optimizer, &args, nullptr));
  }
  muonrt_state_view_t view;
  muonrt_state_view_init(&view);
  require(muonrt_optimizer_state(optimizer, 0, MUONRT_STATE_MOMENTUM, &view));
  const auto* values = static_cast<const float*>(view.data);
  out.momentum.assign(values, values + view.numel);
  int64_t needed = 0;
  require(muonrt_optimizer_describe(optimizer, MUONRT_JSON, nullptr, 0, &needed));
  out.plan.resize(static_cast<size_t>(needed) + 1);
  require(muonrt_optimizer_describe(optimizer, MUONRT_JSON, out.plan.data(), needed + 1, nullptr));
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return out;
}

}  // namespace

TEST_CASE("environment: a caller's flush-to-zero changes no bit and is as before", "[unit][abi]") {
  const Inputs inputs;
  const Result plain = run(inputs);
  // The case is about denormals: without them it could not fail.
  bool denormal = false;
  for (const float m : plain.momentum) {
    denormal = denormal || std::fpclassify(m) == FP_SUBNORMAL;
  }
  CHECK(denormal);
  std::fenv_t saved;
  std::fegetenv(&saved);
  fp_control::flush_to_zero();
  const uint64_t set = fp_control::get();
  const Result flushed = run(inputs);
  const uint64_t after = fp_control::get();
  std::fesetenv(&saved);
  CHECK(after == set);
  CHECK(flushed == plain);
}

TEST_CASE("environment: a caller's rounding mode changes no bit and is as before", "[unit][abi]") {
  const Inputs inputs;
  const Result plain = run(inputs);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    REQUIRE(std::fesetround(mode) == 0);
    const Result rounded = run(inputs);
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    CHECK(after == mode);
    CHECK(rounded == plain);
  }
}

TEST_CASE("environment: a caller's locale changes no text and is as before", "[unit][abi]") {
  const Inputs inputs;
  const Result plain = run(inputs);
  /// Decimal commas and grouped digits, whatever locales the machine has.
  struct Comma : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
  const Result other = run(inputs);
  const std::locale set = std::locale::global(before);
  CHECK(other == plain);
  CHECK(std::has_facet<std::numpunct<char>>(set));
  CHECK(std::use_facet<std::numpunct<char>>(set).decimal_point() == ',');
  CHECK(std::setlocale(LC_ALL, nullptr) == c_before);
}
