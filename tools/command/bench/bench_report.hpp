#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "command/bench/bench_options.hpp"
#include "command/table.hpp"

namespace muonrt::tool {

/// What a benchmark of one device prints: under a title or as JSON, in the end or (--stream) row by
/// row.
class BenchReport {
 public:
  BenchReport(const DeviceArguments& arguments, Table table)
      : arguments_(arguments), table_(std::move(table)) {}

  std::string title, notes;  // for a person: the title ends in " on " and the device
  std::string device;        // as it describes itself
  std::vector<std::pair<std::string, std::string>> fields;  // further ones: name, JSON

  const DeviceArguments& arguments() const { return arguments_; }
  void add(std::vector<Cell> row, int64_t wrong);
  /// A provider that this device does not have.
  void leave_out(const std::string& provider, const std::string& why);
  /// Something failed, and the others go on; the first one is told.
  void fail(const std::string& why);

  /// Prints what `work` adds, also where it throws. @return  the exit status.
  int run(const std::function<void()>& work);
  /// Prints what there is and ends the process at once: whoever gives back what a device that hangs
  /// still holds waits for it for ever.
  [[noreturn]] void give_up(const std::string& why);

 private:
  void print() const;
  void print_json() const;

  const DeviceArguments& arguments_;
  Table table_;
  std::vector<std::pair<std::string, std::string>> left_out_;
  std::string failed_;
  int64_t wrong_ = 0;
};

/// Does `work`; its errors get the provider's name.
template <class Work>
auto on_behalf_of(const std::string& provider, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.status(), provider + ": " + error.message());
  }
}

}  // namespace muonrt::tool
