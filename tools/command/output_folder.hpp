#pragma once

#include <filesystem>
#include <string>

namespace muonrt::tool {

/// A folder that is written as NAME.muonrt-tmp and renamed when it is complete, so after a crash
/// NAME is the old folder or the new one. If NAME is a symbolic link, the folder that it points to
/// is replaced. A run locks the file NAME.muonrt-tmp.lock, which names the run, before it creates
/// the work folder, and removes the file after the folder. A work folder without a lock file
/// therefore belongs to another program.
class OutputFolder {
 public:
  /// Removes the files of a killed run. Throws std::runtime_error if the path is neither free nor a
  /// replaceable folder, if the folder cannot be created or replaced, or if another run is writing
  /// it; the message names that run.
  /// @param option    the option of the command line, for messages.
  /// @param replaces  whether to replace a folder that an earlier OutputFolder wrote, if it holds
  ///                  no other files and no file has changed. An empty folder is always replaced.
  OutputFolder(std::string option, const std::string& path, bool replaces);
  /// Removes what was not committed.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// The folder into which files are written. Every process can compute it from `path`.
  static std::string work_path(const std::string& path);
  const std::string& work_path() const { return work_; }
  /// Whether the path of a file is inside the folder.
  bool contains(const std::string& file) const;
  /// Renames the folder. All files must be on disk.
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
  std::string run_;     // text that names this run in the lock file
  std::string before_;  // state of `target_`; "": it is missing or empty
  /// The open file `lock_path_`, which is locked.
  struct Lock {
    int file = -1;
    ~Lock() { release(); }
    void release();
  } lock_;
  bool owns_work_ = false;  // whether this object removes the work folder
};

}  // namespace muonrt::tool
