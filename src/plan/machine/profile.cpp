#include "plan/machine/profile.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/json_value.hpp"
#include "base/size_text.hpp"

namespace muonrt {

namespace {

struct NumberField {
  const char* name;
  double MachineProfile::*member;
  double low, high;
  bool optional = false;
};

constexpr double kMaxRate = 1e24, kMaxSeconds = 1e3;
constexpr NumberField kFields[] = {
    {"memory_bytes", &MachineProfile::memory_bytes, 1, 1e18},
    {"f32_ratio", &MachineProfile::f32_ratio, 1e-3, 1e3},
    {"product_seconds", &MachineProfile::product_seconds, 0, kMaxSeconds},
    {"pass_bytes", &MachineProfile::pass_bytes, 1, kMaxRate},
    {"normalize_ratio", &MachineProfile::normalize_ratio, 1e-3, 1e3},
    {"pass_seconds", &MachineProfile::pass_seconds, 0, kMaxSeconds},
    {"launch_seconds", &MachineProfile::launch_seconds, 0, kMaxSeconds},
    {"handover_seconds", &MachineProfile::handover_seconds, 0, kMaxSeconds, true},
    {"busy_handover_seconds", &MachineProfile::busy_handover_seconds, 0, kMaxSeconds, true},
    {"processors", &MachineProfile::processors, 1, 1e6},
    {"exchange_processors", &MachineProfile::exchange_processors, 0, 1e6},
    {"node_ranks", &MachineProfile::node_ranks, 1, 1e6},
    {"node_bytes", &MachineProfile::node_bytes, 1, kMaxRate},
    {"network_bytes", &MachineProfile::network_bytes, 1, kMaxRate},
    {"exchange_seconds", &MachineProfile::exchange_seconds, 0, kMaxSeconds},
    {"message_seconds", &MachineProfile::message_seconds, 0, kMaxSeconds},
};

/// Reads the members of one object; `finish` rejects members that were not read.
class Reader {
 public:
  Reader(const JsonValue& value, std::string where) : value_(value), where_(std::move(where)) {
    MUONRT_REQUIRE(value.as<JsonValue::Object>(), Status::kInvalidArgument, where_,
                   " is not an object; write {\"field\": ...}");
  }

  bool has(const char* name) const { return value_.find(name); }
  const JsonValue& at(const char* name) {
    known_.insert(name);
    const JsonValue* const found = value_.find(name);
    MUONRT_REQUIRE(found, Status::kInvalidArgument, where_, ": ", name,
                   " is missing; add it to the profile");
    return *found;
  }
  std::string text(const char* name) {
    const auto* const found = at(name).as<std::string>();
    MUONRT_REQUIRE(found && !found->empty(), Status::kInvalidArgument, where_, ": ", name,
                   " is not a text; write a sentence");
    return *found;
  }
  /// @param is_size  whether the value may also be a text such as "80GiB".
  double number(const char* name, double low, double high, bool is_size = false) {
    const JsonValue& value = at(name);
    const auto* const whole = value.as<int64_t>();
    const auto* const real = value.as<double>();
    const auto* const size = is_size ? value.as<std::string>() : nullptr;
    const auto bytes = size ? parse_bytes(*size) : std::nullopt;
    MUONRT_REQUIRE(whole || real || bytes, Status::kInvalidArgument, where_, ": ", name,
                   " is not a number; write one", is_size ? ", or a size such as \"80GiB\"" : "");
    const double out = bytes   ? static_cast<double>(*bytes)
                       : whole ? static_cast<double>(*whole)
                               : *real;
    MUONRT_REQUIRE(out >= low && out <= high, Status::kInvalidArgument, where_, ": ", name, " is ",
                   out, ", but must be between ", low, " and ", high);
    return out;
  }
  Reader object(const char* name) { return {at(name), cat(where_, ": ", name)}; }
  const std::string& where() const { return where_; }

  void finish() const {
    for (const auto& [name, value] : *value_.as<JsonValue::Object>())
      MUONRT_REQUIRE(known_.contains(name), Status::kInvalidArgument, where_, ": '", name,
                     "' is not a field of a profile; remove it");
  }

 private:
  const JsonValue& value_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

/// Reads a table of rates. Returns, for each row, its key and the values of `columns`.
/// @param key  name of the field that is the key of a row; keys must ascend.
template <class Columns>
std::vector<std::vector<double>> read_rates(Reader table, const char* key, const Columns& columns) {
  table.text("source");
  const auto* const rates = table.at("rates").as<JsonValue::List>();
  MUONRT_REQUIRE(rates && !rates->empty(), Status::kInvalidArgument, table.where(),
                 ": rates is not a list with at least one entry; add {\"", key, "\", \"",
                 *std::begin(columns), "\", ...}");
  std::vector<std::vector<double>> out;
  for (const JsonValue& one : *rates) {
    Reader row(one, cat(table.where(), ": rates[", out.size(), "]"));
    const double at = row.number(key, 1, 1e18);
    MUONRT_REQUIRE(out.empty() || at > out.back().front(), Status::kInvalidArgument, row.where(),
                   ": ", key, " is ", at,
                   ", but must be larger than the one before; sort the list");
    out.push_back({at});
    for (const char* column : columns) out.back().push_back(row.number(column, 1, kMaxRate));
    row.finish();
  }
  table.finish();
  return out;
}

/// Interpolates linearly in the logarithm of the key.
/// @param key, rate  functions that return the key and the rate of a row.
template <class Row, class Key, class Rate>
double interpolated(const std::vector<Row>& rows, double at, const Key& key, const Rate& rate) {
  const auto above =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return key(r) >= at; });
  if (above == rows.begin()) return rate(*above);
  if (above == rows.end()) return rate(rows.back());
  const Row& below = *(above - 1);
  const double part = std::log(at / key(below)) / std::log(key(*above) / key(below));
  return rate(below) + part * (rate(*above) - rate(below));
}

}  // namespace

double MachineProfile::product_rate(int64_t smallest_dimension, bool symmetric, DType dtype) const {
  return (dtype == DType::kF32 ? f32_ratio : 1) *
         interpolated(
             products, static_cast<double>(smallest_dimension),
             [](const ProductRate& r) { return r.size; },
             [&](const ProductRate& r) { return symmetric ? r.symmetric : r.general; });
}

double MachineProfile::pass_rate(PassKind kind, double footprint) const {
  if (passes.empty()) return pass_bytes * (kind == PassKind::kNormalize ? normalize_ratio : 1);
  return interpolated(
      passes, std::max(footprint, 1.0), [](const PassRate& r) { return r.footprint; },
      [&](const PassRate& r) { return r.rates[static_cast<size_t>(kind)]; });
}

double MachineProfile::threads() const {
  if (gpu) return 1;
  return rank_threads > 0 ? rank_threads : std::max(1.0, std::floor(processors / node_ranks));
}

uint64_t MachineProfile::hash() const {
  Hash out;
  out.bytes(name);
  out.value(int64_t{gpu});
  out.value(rank_threads);
  for (const NumberField& field : kFields) out.value(this->*field.member);
  out.value(std::ssize(products));
  for (const ProductRate& r : products) {
    for (const double v : {r.size, r.symmetric, r.general}) out.value(v);
  }
  for (const PassRate& r : passes) {
    out.value(r.footprint);
    for (const double v : r.rates) out.value(v);
  }
  return out.digest();
}

MachineProfile MachineProfile::with_ranks(int ranks, int threads) const {
  MachineProfile out = *this;
  if (gpu) return out;
  out.node_ranks = ranks;
  out.rank_threads = threads;
  out.memory_bytes *= node_ranks / ranks;
  const double ratio = out.threads() / this->threads();
  out.pass_bytes *= ratio;
  for (ProductRate& r : out.products) {
    r.symmetric *= ratio;
    r.general *= ratio;
  }
  for (PassRate& r : out.passes)
    for (double& rate : r.rates) rate *= ratio;
  return out;
}

MachineProfile parse_profile(std::string_view text, const std::string& what) {
  const JsonValue json = parse_json(text, what);
  Reader all(json, what);
  MachineProfile out;
  out.name = all.text("name");
  out.title = all.text("title");
  const std::string device = all.text("device");
  MUONRT_REQUIRE(device == "host" || device == "cuda", Status::kInvalidArgument, what,
                 ": device is '", device, "', but must be host or cuda");
  out.gpu = device == "cuda";
  for (const NumberField& field : kFields) {
    if (field.optional && !all.has(field.name)) continue;
    Reader one = all.object(field.name);
    const bool is_size = std::string_view(field.name).ends_with("_bytes");
    out.*field.member = one.number("value", field.low, field.high, is_size);
    one.text("source");
    one.finish();
  }
  MUONRT_REQUIRE(out.node_ranks == std::floor(out.node_ranks), Status::kInvalidArgument, what,
                 ": node_ranks is ", out.node_ranks, ", but must be a whole number");
  MUONRT_REQUIRE(out.exchange_processors < out.processors || !out.gpu, Status::kInvalidArgument,
                 what, ": exchange_processors is ", out.exchange_processors,
                 ", but must be less than processors, which is ", out.processors);
  const std::array<const char*, 2> forms = {"symmetric", "general"};
  for (const auto& row : read_rates(all.object("products"), "size", forms))
    out.products.push_back({row[0], row[1], row[2]});
  if (all.has("passes")) {
    for (const auto& row : read_rates(all.object("passes"), "footprint", kPassNames)) {
      PassRate& to = out.passes.emplace_back(PassRate{row[0], {}});
      std::copy(row.begin() + 1, row.end(), to.rates.begin());
    }
  }
  all.finish();
  return out;
}

}  // namespace muonrt
