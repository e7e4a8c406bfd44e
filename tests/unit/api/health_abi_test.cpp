#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "muonrt/muonrt.hpp"

// Tests health statistics in the C ABI and in muonrt.hpp.

namespace {

/// An optimizer of one 4 x 6 matrix on one rank.
struct Session {
  std::vector<float> data = std::vector<float>(24, 0.5f), grad = std::vector<float>(24);
  muonrt::Optimizer optimizer;

  explicit Session(int64_t every) : optimizer(make(every)) {}
  muonrt::Optimizer make(int64_t every) {
    for (size_t i = 0; i < grad.size(); ++i)
      grad[i] = std::sin(static_cast<float>(i * i)) + (i % 7 == 0 ? 2.0f : 0.0f);
    static const int64_t kShape[] = {4, 6};
    muonrt_param_t p = muonrt::param();
    p.name = "w";
    p.ndim = 2;
    p.shape = kShape;
    p.dtype = MUONRT_DTYPE_F32;
    p.data = data.data();
    p.grad = grad.data();
    muonrt_optimizer_options_t o = muonrt::options();
    muonrt_debug_options_t debug = muonrt::debug_options();
    debug.health_every = every;
    o.debug = &debug;
    muonrt_group_t g = muonrt::muon_group();
    return muonrt::Optimizer(muonrt::Comm::self(), o, {g}, {p});
  }
};

}  // namespace

TEST_CASE("health abi: a step that collects statistics reports it, and they can be read",
          "[unit][abi][health]") {
  Session s(2);
  muonrt::Health before = s.optimizer.health();
  CHECK(before.summary.step == -1);
  CHECK(before.summary.replica_param == -1);
  CHECK(before.matrices.empty());
  CHECK(s.optimizer.step(0.1).has_health == 0);
  CHECK(s.optimizer.step(0.1).has_health == 1);
  const muonrt::Health after = s.optimizer.health();
  CHECK(after.summary.step == 2);
  CHECK(after.summary.skipped == 0);
  REQUIRE(after.matrices.size() == 1);
  const muonrt_matrix_health_t& m = after.matrices[0];
  CHECK(m.updated == 1);
  CHECK(m.param == 0);
  CHECK(m.index == 0);
  CHECK(m.rows == 4);
  CHECK(m.cols == 6);
  double sum = 0;
  for (const float w : s.data) sum += static_cast<double>(w) * static_cast<double>(w);
  CHECK(m.weight_rms == Approx(std::sqrt(sum / 24)).epsilon(1e-14));
  CHECK(m.deviation == Approx(std::max(1 - m.sigma_min, m.sigma_max - 1)));
  CHECK(std::isnan(m.largest_q));
}

TEST_CASE("health abi: older, newer and wrong structs, null pointers, no interval",
          "[unit][abi][health]") {
  Session off(0), on(1);
  on.optimizer.step(0.1);
  muonrt_health_t health;
  muonrt_health_init(&health);
  muonrt_matrix_health_t matrix;
  muonrt_matrix_health_init(&matrix);
  matrix.struct_size = 4;
  muonrt_optimizer_t* const handle = on.optimizer.get();
  const auto check_error = [](muonrt_optimizer_t* optimizer, muonrt_health_t* summary,
                              muonrt_matrix_health_t* matrices, int64_t capacity, const char* text,
                              muonrt_status_t status = MUONRT_ERROR_INVALID_ARGUMENT) {
    CHECK(muonrt_optimizer_get_health(summary, matrices, capacity, optimizer) == status);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  check_error(off.optimizer.get(), &health, nullptr, 0, "health_every", MUONRT_ERROR_INVALID_STATE);
  check_error(handle, nullptr, nullptr, 0, "health");
  check_error(handle, &health, nullptr, 1, "matrices");
  check_error(handle, &health, nullptr, -1, "capacity is -1");
  check_error(handle, &health, &matrix, 1, "struct_size is 4");
  CHECK(health.step == -1);  // nothing was written
  health.struct_size = 0;
  check_error(handle, &health, nullptr, 0, "struct_size is 0");
  CHECK_THROWS_AS(Session(-1), muonrt::Error);
  // If the caller was compiled with newer headers, the distance between elements is the size of the
  // newer struct. The library leaves the bytes after its own fields unchanged.
  muonrt_health_init(&health);
  struct Newer {
    muonrt_matrix_health_t known;
    int64_t more;
  } newer[3];
  std::memset(newer, 0x55, sizeof newer);
  muonrt_matrix_health_init(&newer[0].known);
  newer[0].known.struct_size = sizeof(Newer);
  CHECK(muonrt_optimizer_get_health(&health, &newer[0].known, 3, handle) == MUONRT_OK);
  CHECK(newer[0].known.rows == 4);
  CHECK(newer[0].more == 0x5555555555555555);
  CHECK(newer[1].known.rows == 0x5555555555555555);  // unchanged, because there is only one matrix
}
