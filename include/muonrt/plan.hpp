/// @file muonrt/plan.hpp
/// The part of muonrt/muonrt.hpp that wraps muonrt/plan.h.
#ifndef MUONRT_PLAN_HPP
#define MUONRT_PLAN_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/error.hpp"
#include "muonrt/plan.h"

namespace muonrt {
inline namespace v0 {

/// A plan without an optimizer; see muonrt/plan.h. Movable; the destructor calls
/// muonrt_plan_destroy().
class Plan {
 public:
  /// Plans an optimizer; see muonrt_plan_create().
  /// @param world     The number of ranks.
  /// @param settings  The options, for example from options().
  /// @param groups    The groups. `group` of each parameter is an index in this list.
  /// @param params    The parameters, without buffers.
  Plan(int32_t world, const muonrt_optimizer_options_t& settings,
       const std::vector<muonrt_group_t>& groups, const std::vector<muonrt_param_t>& params) {
    muonrt_plan_t* handle = nullptr;
    check(muonrt_plan_create(&handle, world, &settings, groups.data(),
                             static_cast<int32_t>(groups.size()), params.data(),
                             static_cast<int64_t>(params.size())));
    handle_.reset(handle);
  }
  /// Creates a plan from an existing optimizer; see muonrt_plan_create_from_optimizer().
  explicit Plan(const muonrt_optimizer_t* optimizer) {
    handle_.reset(detail::value<muonrt_plan_t*>(muonrt_plan_create_from_optimizer, optimizer));
  }
  /// @return The summary of the plan; see muonrt_plan_get_summary().
  muonrt_plan_summary_t summary() const {
    auto out = detail::filled(muonrt_plan_summary_init_sized);
    check(muonrt_plan_get_summary(&out, get()));
    return out;
  }
  /// @return The memory and the work of a rank; see muonrt_plan_get_rank().
  muonrt_plan_rank_t rank(int32_t rank) const {
    auto out = detail::filled(muonrt_plan_rank_init_sized);
    check(muonrt_plan_get_rank(&out, get(), rank));
    return out;
  }
  /// @return The predicted time of a step on a machine; see muonrt_plan_get_time().
  /// @param machine  The machine's name, or the JSON text of a profile.
  muonrt_plan_time_t time(const std::string& machine) const {
    auto out = detail::filled(muonrt_plan_time_init_sized);
    check(muonrt_plan_get_time(&out, get(), machine.c_str()));
    return out;
  }
  /// @return The plan as text or JSON; see muonrt_plan_describe().
  std::string describe(enum muonrt_format format = MUONRT_FORMAT_TEXT, int64_t max_rows = 0) const {
    return detail::text([&](char* buffer, int64_t capacity, int64_t* needed) {
      return muonrt_plan_describe(buffer, capacity, needed, get(), format, max_rows);
    });
  }
  /// @return The handle. It still belongs to this object, so do not destroy it.
  muonrt_plan_t* get() const noexcept { return handle_.get(); }

 private:
  struct Delete {
    void operator()(muonrt_plan_t* p) const noexcept { muonrt_plan_destroy(p); }
  };
  std::unique_ptr<muonrt_plan_t, Delete> handle_;
};

}  // namespace v0
}  // namespace muonrt

#endif  // MUONRT_PLAN_HPP
