#include <algorithm>

#include "base/edits.hpp"
#include "base/error.hpp"
#include "plan/machine/named_profiles.hpp"

namespace muonrt {

std::string profile_names() {
  std::string out;
  for (const NamedProfile& p : named_profiles()) out += (out.empty() ? "" : ", ") + cat(p.name);
  return out;
}

MachineProfile find_profile(std::string_view name_or_json, const std::string& what) {
  const size_t first = name_or_json.find_first_not_of(" \t\r\n");
  if (first != name_or_json.npos && name_or_json[first] == '{')
    return parse_profile(name_or_json, what);
  for (const NamedProfile& p : named_profiles())
    if (name_or_json == p.name) return parse_profile(p.json, cat(what, " '", p.name, "'"));
  const std::string_view given = name_or_json.substr(0, 64);
  const auto nearest = std::min_element(
      named_profiles().begin(), named_profiles().end(), [&](const auto& a, const auto& b) {
        return edits_between(given, a.name) < edits_between(given, b.name);
      });
  throw Error(Status::kInvalidArgument,
              cat(what, " is ", in_quotes(name_or_json), ", but must be one of ", profile_names(),
                  ", or the JSON text of a profile; the nearest name is '", nearest->name, "'"));
}

}  // namespace muonrt
