#include <catch2/catch.hpp>

#include "algo/restarts.hpp"
#include "cuda/symmetric/symmetric_cases.hpp"
#include "unit/algo/newton_schulz_cases.hpp"

using namespace muonrt;
using namespace newton_schulz_cases;

namespace {

std::vector<backends::Backend> cuda_backends() {
  std::vector<backends::Backend> list = {backends::cuda(/*naive_products=*/true)};
  for (const SymmetricProvider own : cuda_test::symmetric_providers())
    list.push_back(backends::cuda(false, own));
  list.push_back(backends::cuda());
  return list;
}

/// Returns the steps at which the Gram form of this list restarts in `dtype`.
std::vector<int> restarts_of(const Named& l, DType dtype) {
  CoefficientList list;
  for (const auto& [a, b, c] : l.list) list.steps.push_back({a, b, c});
  list.input_safety = l.safety;
  return find_restarts(list, dtype, list, 512);
}

}  // namespace

TEST_CASE("cuda newton-schulz: equals the reference in f32, and is close to it in bf16 and f16",
          "[cuda]") {
  auto backends = cuda_backends();
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>(1, 7), {16, 24}, {33, 65}}) {
    const Matrix x = reference::gaussian(m, n, 31);
    for (const Named& l : five_step_lists()) {
      for (const DType transport : {DType::kF32, DType::kBF16}) {
        if (!bf16_stands(l)) continue;  // without headroom, the tolerance does not apply
        const Matrix in = reference::rounded(x, transport);
        const Matrix expected = reference::newton_schulz(l.list, l.safety, in);
        for (auto& backend : backends) {
          INFO(backend.name << ", " << l.name << ", " << m << " x " << n);
          const Matrix f32 = standard(backend, l, DType::kF32, transport, in);
          CHECK(reference::max_difference(f32, expected) <= near(l));
          const Matrix bf16 = standard(backend, l, DType::kBF16, transport, in);
          CHECK(reference::max_difference(bf16, expected) <= tolerance::newton_schulz_bf16(m));
          // f16 has three more significand bits than bf16, so the tolerance is 8 times smaller.
          const Matrix f16 = standard(backend, l, DType::kF16, transport, in);
          CHECK(reference::max_difference(f16, expected) <= tolerance::newton_schulz_bf16(m) / 8);
        }
      }
    }
  }
}

TEST_CASE(
    "cuda newton-schulz: muonrt's own products round at the same places as the host's, in both "
    "forms",
    "[cuda]") {
  auto host = backends::host(1);
  std::vector<backends::Backend> devices;
  for (const SymmetricProvider own : cuda_test::symmetric_providers())
    devices.push_back(backends::cuda(false, own));
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>(40, 100), {130, 150}, {100, 400}}) {
    for (const Named& l : five_step_lists()) {
      if (!bf16_stands(l)) continue;
      const Matrix in = reference::rounded(reference::gaussian(m, n, 77), DType::kBF16);
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const auto restarts = restarts_of(l, dtype);
        const auto settings = runner::settings_of(l.list, l.safety, dtype, restarts);
        for (const bool gram : {false, true}) {
          const auto method = gram ? runner::gram(l.list, restarts) : runner::standard(l.list);
          const auto run = [&](backends::Backend& on) {
            return runner::orthogonalize(on, settings, method, DType::kBF16, in);
          };
          const Matrix here = run(host);
          for (auto& device : devices) {
            INFO(device.name << ", " << l.name << ", " << m << " x " << n << ", " << name_of(dtype)
                             << (gram ? ", gram" : ", standard"));
            CHECK(reference::max_difference(here, run(device)) <=
                  tolerance::order_of_sums(dtype, gram, m));
          }
        }
      }
    }
  }
}
