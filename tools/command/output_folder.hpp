#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "state/files.hpp"

namespace muonrt::tool {

/// A folder that is written next to its place, as NAME.muonrt-tmp, and takes its name by one rename
/// when it is complete. Whenever the process or the machine stops, the name has the old folder or
/// the new one. A symbolic link stays, and the folder that it points to is written.
/// A run locks the file NAME.muonrt-tmp.lock, which names the run, before it creates the work
/// folder, and removes the file after the folder. A work folder without a lock file is therefore of
/// another program.
class OutputFolder {
 public:
  /// @param option    of the command line, for messages.
  /// @param replaces  whether a folder may be replaced that an earlier OutputFolder wrote, if it
  ///                  holds nothing else and no file has changed. An empty folder always may.
  /// Throws std::runtime_error if something else is there, if the folder cannot be made or
  /// replaced, and if another run writes it now (naming that run). Removes what a killed run has
  /// left.
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
  /// Throws std::runtime_error if the target has changed since the construction, and if the rename
  /// fails; then the work folder stays, and the error names it.
  void commit();

 private:
  bool lock();
  void require_replaceable() const;
  std::string checked_state() const;
  void try_exchange() const;
  void exchange();
  void discard() noexcept;
  [[noreturn]] void keep(const std::string& problem);
  [[noreturn]] void fail_changed() const;
  [[noreturn]] void fail(const std::string& problem) const;

  std::string option_, work_, lock_path_;
  std::filesystem::path target_;
  bool replaces_;
  std::string run_;         // this one, in the lock file
  std::string before_;      // state of `target_`; "": it is missing or empty
  FileLock lock_;           // of `lock_path_`
  bool owns_work_ = false;  // whether the work folder is to be removed
};

}  // namespace muonrt::tool
