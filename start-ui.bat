@echo off
rem Sets Chorus up on first use, then opens its window: start-ui.bat [options of scripts\train_ui.py]
setlocal EnableExtensions DisableDelayedExpansion
set "CHORUS_SCRIPT=train_ui.py"
set "CHORUS_SETUP=--ui"
rem Not by call, which would read the options a second time and change those with a percent sign or a caret.
"%~dp0scripts\start.bat" %*
