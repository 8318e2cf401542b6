@echo off
rem Sets Chorus up on first use, then trains: start-multi-gpu.bat [options of scripts\start_multi_gpu.py]
setlocal EnableExtensions DisableDelayedExpansion
set "CHORUS_SCRIPT=start_multi_gpu.py"
set "CHORUS_SETUP="
rem Not by call, which would read the options a second time and change those with a percent sign or a caret.
"%~dp0scripts\start.bat" %*
