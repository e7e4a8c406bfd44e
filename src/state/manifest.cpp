#include "state/manifest.hpp"

#include <charconv>
#include <limits>
#include <mutex>

#include "base/crc32c.hpp"
#include "base/json.hpp"
#include "base/json_value.hpp"
#include "optimizer/settings/describe.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

/// Limits that every manifest from muonrt satisfies. A parameter has at most 50 values, and a group
/// of settings has at most 80.
constexpr JsonLimits kLimits{6, std::numeric_limits<size_t>::max(), 1000};
constexpr size_t kMaxMembers = 50;  // maximum number of members of the manifest
constexpr size_t kFewGroups = 100, kGroupBytes = 100;

/// Returns the first line of a manifest. This line contains the checksum of the remaining text.
std::string first_line(std::string_view rest) {
  return cat("{\"crc32c\": \"", digits_of(crc32c(rest.data(), rest.size()), 8), "\",\n");
}

/// Returns those settings of a group that apply to its role, keyed by name.
std::map<std::string, std::string> listed_settings(const GroupSettings& group) {
  std::map<std::string, std::string> out;
  const unsigned other = group.role == Role::kMuon ? kAdamWOnly : kMuonOnly;
  visit_group_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      if (!(row.use & other)) out[row.name] = text_of(row, row.member(group));
    } else {
      out[row.name] = text_of(row, group);
    }
  });
  return out;
}

/// Reads the members of a JSON object.
class Reader {
 public:
  Reader(const JsonValue& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <class T>
  const T& at(const char* key) const {
    const JsonValue* const found = json_.find(key);
    const T* const value = found ? found->as<T>() : nullptr;
    MUONRT_REQUIRE(value, Status::kCorrupt, where_, ": ", key,
                   " is missing or has the wrong type; load another checkpoint");
    return *value;
  }
  int64_t count(const char* key, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const int64_t value = at<int64_t>(key);
    MUONRT_REQUIRE(value >= 0 && value <= most, Status::kCorrupt, where_, ": ", key, " is ", value,
                   ", but must be between 0 and ", most, "; load another checkpoint");
    return value;
  }
  uint64_t hex(const char* key, size_t digits = 16) const {
    const std::string& text = at<std::string>(key);
    uint64_t out = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), out, 16);
    MUONRT_REQUIRE(text.size() == digits && end.ptr == text.data() + text.size(), Status::kCorrupt,
                   where_, ": ", key, " is not a number of ", digits,
                   " hexadecimal digits; load another checkpoint");
    return out;
  }
  double number(const char* key) const {
    const JsonValue* const found = json_.find(key);
    if (const auto* whole = found ? found->as<int64_t>() : nullptr)
      return static_cast<double>(*whole);
    return at<double>(key);
  }
  /// Returns all members, which must be strings.
  std::map<std::string, std::string> texts() const {
    const auto* const object = json_.as<JsonValue::Object>();
    MUONRT_REQUIRE(object, Status::kCorrupt, where_,
                   ": the value is not an object; load another checkpoint");
    std::map<std::string, std::string> out;
    for (const auto& [name, unused] : *object) out[name] = at<std::string>(name.c_str());
    return out;
  }
  Reader inner(const char* key) const {
    const JsonValue* const found = json_.find(key);
    MUONRT_REQUIRE(found, Status::kCorrupt, where_, ": ", key,
                   " is missing; load another checkpoint");
    return Reader(*found, cat(where_, ": ", key));
  }
  std::vector<int64_t> counts(const char* key) const {
    std::vector<int64_t> out;
    for (const JsonValue& value : at<JsonValue::List>(key)) {
      const auto* number = value.as<int64_t>();
      MUONRT_REQUIRE(number && *number >= 0, Status::kCorrupt, where_, ": ", key,
                     " has a value that is not a size; load another checkpoint");
      out.push_back(*number);
    }
    return out;
  }

  const std::string& where() const { return where_; }

 private:
  const JsonValue& json_;
  std::string where_;
};

void write_texts(JsonWriter& json, const std::map<std::string, std::string>& texts) {
  json.object([&] {
    for (const auto& [name, text] : texts) json.field(name, text);
  });
}

ManifestParam read_param(const Reader& json) {
  ManifestParam p;
  p.name = json.at<std::string>("name");
  p.shape = json.counts("shape");
  p.dtype = json.at<std::string>("dtype");
  p.role = json.at<std::string>("role");
  p.momentum = json.at<std::string>("momentum");
  p.momentum_constant = json.number("constant");
  p.updates = json.count("updates", kMaxStepCount);
  p.key = static_cast<uint32_t>(json.hex("key", 8));
  p.hash = json.hex("hash");
  p.neurons = json.at<std::string>("lines");
  p.group = json.count("group");
  p.state = json.inner("state").texts();
  const bool good = (p.momentum == "ema" || p.momentum == "heavy_ball") &&
                    p.momentum_constant >= 0 && p.momentum_constant < 1;
  MUONRT_REQUIRE(good, Status::kCorrupt, "manifest: param ", in_quotes(p.name),
                 ": its momentum is ", in_quotes(p.momentum), " with constant ",
                 p.momentum_constant,
                 ", but must be ema or heavy_ball with a constant from 0 to below 1; load another "
                 "checkpoint");
  for (const auto& [word, dtype] : p.state) {
    const bool remainder = word == kind_name(static_cast<int32_t>(StateKind::kRemainder));
    const bool known = kind_from_name(word) != kind_from_name("") &&
                       (remainder ? dtype == "U16" : dtype == "F32" || dtype == "BF16");
    MUONRT_REQUIRE(known, Status::kCorrupt, "manifest: param ", in_quotes(p.name), ": its state ",
                   in_quotes(word), " in ", in_quotes(dtype),
                   " is unknown; load another checkpoint");
  }
  return p;
}

ManifestFile read_file(const Reader& json) {
  ManifestFile out = {json.at<std::string>("name"), json.count("bytes"),
                      static_cast<uint32_t>(json.hex("header_crc32c", 8))};
  MUONRT_REQUIRE(!out.name.empty() && out.name.find('/') == out.name.npos, Status::kCorrupt,
                 "manifest: files: ", in_quotes(out.name),
                 " is not the name of a file in the manifest's folder; load another checkpoint");
  return out;
}

void require_format(const Reader& json) {
  const std::string& format = json.at<std::string>("format");
  MUONRT_REQUIRE(format == kCheckpointFormat, Status::kNotSupported, json.where(),
                 ": the format is ", in_quotes(format), ", but this library reads ",
                 kCheckpointFormat, "; use the version of muonrt that wrote it");
}

}  // namespace

std::string manifest_path(const std::string& folder, const std::string& name) {
  return cat(folder, "/", name.empty() ? kManifestName : name);
}

Manifest manifest_of(const Optimizer& optimizer) {
  const OptimizerSettings& settings = optimizer.settings();
  Manifest out;
  out.step = optimizer.steps();
  for (const GroupSettings& group : settings.groups) out.groups.push_back(listed_settings(group));
  const RandomKeys keys = optimizer.random_keys();
  out.seed = keys.seed;
  for (int64_t i = 0; i < std::ssize(settings.params); ++i) {
    const ParamSettings& p = settings.params[static_cast<size_t>(i)];
    const GroupSettings& group = group_of(settings, i);
    const bool muon = group.role == Role::kMuon;
    ManifestParam& to = out.params.emplace_back();
    to.name = p.name;
    to.shape = p.layout.tensor_shape();
    to.dtype = name_of(p.dtype);
    to.role = muon ? "muon" : "adamw";
    to.momentum = muon && group.momentum_kind == MomentumKind::kHeavyBall ? "heavy_ball" : "ema";
    to.momentum_constant = muon ? group.momentum : group.beta1;
    to.updates = optimizer.updates(i);
    to.key = keys.keys[static_cast<size_t>(i)];
    to.group = p.group;
  }
  for (const StateTensor& t : state_tensors(settings)) {
    ManifestParam& to = out.params[static_cast<size_t>(t.param)];
    to.state[kind_name(t.kind)] = t.dtype;
    if (t.location == StateLocation::kOwnedNeurons)
      to.neurons = digits_of(normuon_digest(settings, static_cast<int32_t>(t.param)), 16);
  }
  return out;
}

std::string to_text(const Manifest& manifest) {
  JsonWriter json;
  json.object([&] {
    json.field("format", kCheckpointFormat);
    json.field("save", manifest.save);
    json.field("step", manifest.step);
    json.field("seed", digits_of(manifest.seed, 16));
    json.field("with_params", manifest.with_params);
    json.key("groups");
    json.list([&] {
      for (const auto& group : manifest.groups) write_texts(json, group);
    });
    json.key("params");
    json.list([&] {
      for (const ManifestParam& p : manifest.params) {
        json.object([&] {
          json.field("name", p.name);
          json.field("shape", p.shape);
          json.field("dtype", p.dtype);
          json.field("role", p.role);
          json.field("momentum", p.momentum);
          json.field("constant", p.momentum_constant);
          json.field("updates", p.updates);
          json.field("key", digits_of(p.key, 8));
          json.field("hash", digits_of(p.hash, 16));
          json.field("lines", p.neurons);
          json.field("group", p.group);
          json.key("state");
          write_texts(json, p.state);
        });
      }
    });
    json.key("files");
    json.list([&] {
      for (const ManifestFile& file : manifest.files) {
        json.object([&] {
          json.field("name", file.name);
          json.field("bytes", file.bytes);
          json.field("header_crc32c", digits_of(file.header_crc32c, 8));
        });
      }
    });
  });
  const std::string rest = json.take().substr(1) + "\n";
  return first_line(rest) + rest;
}

Manifest parse_manifest(std::string_view text, const std::string& what) {
  const size_t end = text.find('\n');
  const std::string_view rest = end == text.npos ? "" : text.substr(end + 1);
  MUONRT_REQUIRE(end != text.npos && text.substr(0, end + 1) == first_line(rest), Status::kCorrupt,
                 what, ": the first line does not have the checksum of the following text (",
                 digits_of(crc32c(rest.data(), rest.size()), 8), "); load another checkpoint");
  Manifest out;
  JsonValue members = {JsonValue::Object()};
  const Reader json(members, what);
  const auto where = [&](const char* key, size_t at) { return cat(what, ": ", key, "[", at, "]"); };
  JsonParts parts;
  parts.member = [&](const std::string& key, JsonValue member) {
    auto& all = std::get<JsonValue::Object>(members.value);
    MUONRT_REQUIRE(all.size() < kMaxMembers, Status::kCorrupt, what, ": it has more than ",
                   kMaxMembers, " members; load another checkpoint");
    all[key] = std::move(member);
    if (key == "format") require_format(json);
  };
  parts.items["groups"] = [&](const JsonValue& item) {
    // Each group with settings takes at least kGroupBytes of text. Only an import writes groups
    // without settings, and it writes two of them.
    const size_t most = kFewGroups + text.size() / kGroupBytes;
    MUONRT_REQUIRE(out.groups.size() < most, Status::kCorrupt, what, ": it has more than ", most,
                   " groups; load another checkpoint");
    out.groups.push_back(Reader(item, where("groups", out.groups.size())).texts());
  };
  parts.items["params"] = [&](const JsonValue& item) {
    out.params.push_back(read_param(Reader(item, where("params", out.params.size()))));
  };
  parts.items["files"] = [&](const JsonValue& item) {
    out.files.push_back(read_file(Reader(item, where("files", out.files.size()))));
  };
  parse_json_parts(text, what, kLimits, parts);
  require_format(json);
  out.save = json.count("save", kMaxSaves);
  out.step = json.count("step", kMaxStepCount);
  out.seed = json.hex("seed");
  out.with_params = json.at<bool>("with_params");
  for (const char* list : {"groups", "params", "files"}) json.at<JsonValue::List>(list);
  for (const ManifestParam& p : out.params)
    MUONRT_REQUIRE(p.group < std::ssize(out.groups), Status::kCorrupt, what, ": param ",
                   in_quotes(p.name), " is in group ", p.group, ", but there are ",
                   out.groups.size(), " groups; load another checkpoint");
  return out;
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(MappedFile(path).text(), path);
}

std::shared_ptr<const SharedManifest> share_manifest(const std::string& path) {
  static std::mutex mutex;
  static std::weak_ptr<const SharedManifest> last;
  auto mine = std::make_shared<SharedManifest>(path);
  const std::lock_guard lock(mutex);
  const auto there = last.lock();
  if (there && there->file.text() == mine->file.text()) return there;
  mine->manifest = parse_manifest(mine->file.text(), path);
  last = mine;
  return mine;
}

}  // namespace muonrt
