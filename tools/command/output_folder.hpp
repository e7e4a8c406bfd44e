#pragma once

#include <filesystem>
#include <string>

namespace muonrt::tool {

/// A folder that is written as NAME.muonrt-tmp and renamed when it is complete, so that after a
/// crash NAME is either the old folder or the new one. If NAME is a symbolic link, the linked
/// folder is replaced. Before a run creates the work folder, the run locks the file
/// NAME.muonrt-tmp.lock, which identifies the run. The run removes this file after it has removed
/// the work folder. A work folder without a lock file therefore belongs to another program.
class OutputFolder {
 public:
  /// Removes the files of a killed run. Throws std::runtime_error if the path is neither free nor a
  /// replaceable folder, if the folder cannot be created or replaced, or if another run is writing
  /// it; the message then identifies that run.
  /// @param option    the command-line option that names the folder, for messages.
  /// @param replaces  whether to replace a folder that an earlier OutputFolder wrote, if it holds
  ///     no other files and no file has changed. An empty folder is always replaced.
  OutputFolder(std::string option, const std::string& path, bool replaces);
  /// Removes the work folder if it was not committed.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Returns the folder into which files are written. It depends only on `path`, so every process
  /// can compute it.
  static std::string work_path(const std::string& path);
  const std::string& work_path() const { return work_; }
  /// Returns whether the path of a file is inside the folder.
  bool contains(const std::string& file) const;
  /// Renames the work folder. All files must be on disk. Throws std::runtime_error if the target
  /// has changed since the construction, or if the rename fails; the work folder then stays, and
  /// the error names it.
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
  std::string run_;     // identifies this run in the lock file
  std::string before_;  // state of `target_`; "" if it is missing or empty
  /// The open file `lock_path_`, which is locked.
  struct Lock {
    int file = -1;
    ~Lock() { release(); }
    void release();
  } lock_;
  bool owns_work_ = false;  // whether this object must remove the work folder
};

}  // namespace muonrt::tool
