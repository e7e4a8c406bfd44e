#include "base/text.hpp"
#include "optimizer/settings/fields.hpp"
#include "support/faults/bad_input.hpp"

namespace bad_input {

namespace {

using namespace muonrt;

// Returns values that `rule` rejects.
std::vector<double> rejected_by(const Number& rule) {
  return {kNan, rule.or_zero ? rule.low / 2 : rule.low - 1, rule.open ? rule.high : 2 * rule.high};
}
std::vector<double> rejected_by(const Decay&) { return {kNan, -1, 1, 0.99999999}; }
std::vector<double> rejected_by(const NumberOrNone&) { return {kNan, -1, 1e-31, 2e30}; }
std::vector<int64_t> rejected_by(const Integers& rule) { return {-1, rule.high + 1}; }
std::vector<int64_t> rejected_by(const Choice&) { return {-1, 55}; }
std::vector<int64_t> rejected_by(const Flag&) { return {2}; }
std::vector<int64_t> rejected_by(const StorageDType&) { return {77, MUONRT_DTYPE_F16}; }
std::vector<int64_t> rejected_by(const AnyDType&) { return {77}; }
std::vector<const char*> rejected_by(const MachineText&) { return {"h101", "h100"}; }
std::vector<int64_t> rejected_by(const Unchecked&) { return {}; }

/// Adds the cases of one field.
/// @param member_of  A function: member_of(field, arguments) returns the member of the struct.
template <class MemberOf>
auto adds(std::vector<BadCase>& cases, const std::string& who, MemberOf member_of) {
  return [=, &cases](const auto& field) {
    if constexpr (requires { field.rule; }) {
      for (const auto value : rejected_by(field.rule)) {
        std::string text = cat(field.name, " is ", value);
        if constexpr (std::is_same_v<decltype(field.rule), StorageDType>) {
          if (value == MUONRT_DTYPE_F16) text = cat(field.name, " is f16");
        }
        if constexpr (std::is_same_v<decltype(field.rule), MachineText>) text = field.name;
        cases.push_back({{who, text}, [=](Arguments& a) {
                           auto& member = member_of(field, a);
                           member = static_cast<std::remove_reference_t<decltype(member)>>(value);
                         }});
      }
    }
  };
}

}  // namespace

std::vector<BadCase> field_cases() {
  std::vector<BadCase> out;
  visit_option_fields(adds(
      out, "options", [](const auto& field, Arguments& a) -> auto& {
        return c_field(field, a.options, a.tuning, a.debug);
      }));
  visit_group_fields([&](const auto& field) {
    const int group = [&] {
      if constexpr (requires { field.use; }) return field.has(kAdamWOnly) ? 1 : 0;
      return 0;
    }();
    adds(
        out, cat("group ", group), [group](const auto& row, Arguments& a) -> auto& {
          return row.c_member(a.groups[group]);
        })(field);
  });
  return out;
}

std::vector<std::string> unchecked_fields() {
  std::vector<std::string> out;
  const auto note = [&](const auto& field) {
    if constexpr (requires { field.rule; })
      if (rejected_by(field.rule).empty()) out.push_back(field.name);
  };
  visit_option_fields(note);
  visit_group_fields(note);
  return out;
}

}  // namespace bad_input
