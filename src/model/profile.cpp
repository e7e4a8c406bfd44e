#include "model/profile.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/json_value.hpp"

namespace muonrt {

namespace {

struct NumberField {
  const char* name;
  double MachineProfile::*member;
  double low, high;
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
    {"processors", &MachineProfile::processors, 1, 1e6},
    {"exchange_processors", &MachineProfile::exchange_processors, 0, 1e6},
    {"node_ranks", &MachineProfile::node_ranks, 1, 1e6},
    {"node_bytes", &MachineProfile::node_bytes, 1, kMaxRate},
    {"network_bytes", &MachineProfile::network_bytes, 1, kMaxRate},
    {"exchange_seconds", &MachineProfile::exchange_seconds, 0, kMaxSeconds},
    {"message_seconds", &MachineProfile::message_seconds, 0, kMaxSeconds},
};

/// Reads the members of one object; `finish` rejects those that were not read.
class Reader {
 public:
  Reader(const JsonValue& value, std::string where) : value_(value), where_(std::move(where)) {
    MUONRT_REQUIRE(value.as<JsonValue::Object>(), Status::kInvalidArgument, where_,
                   " is not an object; write {\"field\": ...}");
  }

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
  double number(const char* name, double low, double high) {
    const JsonValue& value = at(name);
    const auto* const whole = value.as<int64_t>();
    const auto* const real = value.as<double>();
    MUONRT_REQUIRE(whole || real, Status::kInvalidArgument, where_, ": ", name,
                   " is not a number; write one");
    const double out = whole ? static_cast<double>(*whole) : *real;
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

std::vector<ProductRate> read_products(Reader products) {
  products.text("source");
  const auto* const rates = products.at("rates").as<JsonValue::List>();
  MUONRT_REQUIRE(
      rates && !rates->empty(), Status::kInvalidArgument, products.where(),
      ": rates is not a list with at least one entry; add {\"size\", \"symmetric\", \"general\"}");
  std::vector<ProductRate> out;
  for (const JsonValue& one : *rates) {
    Reader row(one, cat(products.where(), ": rates[", out.size(), "]"));
    const double size = row.number("size", 1, 1e9);
    MUONRT_REQUIRE(out.empty() || size > out.back().size, Status::kInvalidArgument, row.where(),
                   ": size is ", size, ", but must be larger than the one before; sort the list");
    out.push_back({size, row.number("symmetric", 1, kMaxRate), row.number("general", 1, kMaxRate)});
    row.finish();
  }
  products.finish();
  return out;
}

}  // namespace

double MachineProfile::product_rate(int64_t smallest_dimension, bool symmetric, DType dtype) const {
  const auto size = static_cast<double>(smallest_dimension);
  const auto rate = [&](const ProductRate& r) { return symmetric ? r.symmetric : r.general; };
  const double ratio = dtype == DType::kF32 ? f32_ratio : 1;
  const auto above = std::find_if(products.begin(), products.end(),
                                  [&](const ProductRate& r) { return r.size >= size; });
  if (above == products.begin()) return rate(*above) * ratio;
  if (above == products.end()) return rate(products.back()) * ratio;
  const ProductRate& below = *(above - 1);
  const double part = std::log(size / below.size) / std::log(above->size / below.size);
  return (rate(below) + part * (rate(*above) - rate(below))) * ratio;
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
    Reader one = all.object(field.name);
    out.*field.member = one.number("value", field.low, field.high);
    one.text("source");
    one.finish();
  }
  MUONRT_REQUIRE(out.node_ranks == std::floor(out.node_ranks), Status::kInvalidArgument, what,
                 ": node_ranks is ", out.node_ranks, ", but must be a whole number");
  MUONRT_REQUIRE(out.exchange_processors < out.processors, Status::kInvalidArgument, what,
                 ": exchange_processors is ", out.exchange_processors,
                 ", but must be less than processors, which is ", out.processors);
  out.products = read_products(all.object("products"));
  all.finish();
  return out;
}

}  // namespace muonrt
