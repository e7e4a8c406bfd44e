#include "command/bench/bench_report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <new>

namespace muonrt::tool {

void BenchReport::add(std::vector<Cell> row, int64_t wrong) {
  table_.add(std::move(row));
  wrong_ += wrong;
  if (!arguments_.stream) return;
  fmt::print("{{\"row\":{}}}\n", table_.json(table_.rows() - 1));
  std::fflush(stdout);
}

void BenchReport::leave_out(const std::string& provider, const std::string& why) {
  left_out_.emplace_back(provider, why);
}

void BenchReport::fail(const std::string& why) {
  if (failed_.empty()) failed_ = why;
}

int BenchReport::run(const std::function<void()>& work) {
  try {
    work();
    if (table_.rows() == 0)
      fail(
          "nothing was measured (plain loops leave large products out); ask for smaller "
          "shapes or other providers");
  } catch (const std::bad_alloc&) {
    fail("memory is exhausted; what was asked for is too large for this machine");
  } catch (const Error& error) {
    if (error.status() == Status::kTimeout) give_up(error.message());
    fail(error.message());
  }
  print();
  return failed_.empty() && wrong_ == 0 ? 0 : 1;
}

void BenchReport::give_up(const std::string& why) {
  failed_ = why;
  print();
  std::_Exit(1);
}

void BenchReport::print() const {
  if (arguments_.json) {
    print_json();
  } else {
    fmt::print("{} on {}\n{}\n\n{}", title, device.empty() ? arguments_.device : device, notes,
               table_.text());
    for (const auto& [provider, why] : left_out_) fmt::print("left out: {}: {}\n", provider, why);
    if (!failed_.empty()) fmt::print("failed: {}\n", failed_);
  }
  std::fflush(stdout);
}

void BenchReport::print_json() const {
  auto all = fields;
  all.insert(all.begin(), {"device", json_text(device)});
  all.emplace_back("wrong", fmt::format("{}", wrong_));
  auto left_out = left_out_;
  for (auto& [provider, why] : left_out) why = json_text(why);
  all.emplace_back("left_out", json_object(left_out));
  if (!failed_.empty()) all.emplace_back("failed", json_text(failed_));
  std::string rows;
  for (size_t i = 0; i < table_.rows(); ++i) rows += (i > 0 ? "," : "") + table_.json(i);
  all.emplace_back("rows", "[" + rows + "]");
  fmt::print("{}\n", json_object(all));
}

}  // namespace muonrt::tool
