#include "base/error.hpp"
#include "model/named_profiles.hpp"

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
  throw Error(Status::kInvalidArgument, cat(what, " is '", name_or_json, "', but must be one of ",
                                            profile_names(), ", or the JSON text of a profile"));
}

}  // namespace muonrt
