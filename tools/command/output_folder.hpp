#pragma once

#include <filesystem>
#include <string>

namespace muonrt::tool {

/// A folder that is written beside its place, as NAME.muonrt-tmp, and takes its name by one rename
/// when it is complete. Whenever the process or the machine stops, the name has the old folder or
/// the new one. A symbolic link stays, and the folder that it points to is written.
class OutputFolder {
 public:
  /// @param option    of the command line, for messages.
  /// @param replaces  whether a folder that an earlier OutputFolder wrote, and that holds nothing
  ///                  else, may be replaced. An empty folder always may.
  /// Throws std::runtime_error where something else is there, where no folder can be made, and
  /// where another run writes it now (naming that run). What a run that was killed has left is
  /// removed.
  OutputFolder(std::string option, const std::string& path, bool replaces);
  /// Removes what was not committed.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Where its files are to be written; the same for every process that knows `path`.
  static std::string work_path(const std::string& path);
  const std::string& work_path() const { return work_; }
  /// Whether a file lies in the folder as it is now.
  bool contains(const std::string& file) const;
  /// The folder takes its name. All files must be on disk.
  /// Throws std::runtime_error where what is there has changed since the construction.
  void commit();

 private:
  void lock();
  void clear();
  void check_target() const;
  void exchange();
  [[noreturn]] void fail(const std::string& problem) const;

  std::string option_, work_;
  std::filesystem::path target_;
  bool replaces_;
  std::string before_;  // what `target_` held; "": it is to be new
  int folder_ = -1;     // `work_`, locked
};

}  // namespace muonrt::tool
